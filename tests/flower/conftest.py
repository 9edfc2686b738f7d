"""These tests need Flower; without it they are skipped, and say so."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'sqsgd[flower]'")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def patient_server(request, monkeypatch):
    """On a busy machine, a look at an answer that is there takes longer than the short rounds of tests last.

    A look ends when the answer is there, so this makes no test slower. Where looks themselves are tested,
    they last as long as they do in a training.
    """
    from sqsgd.federation.flower import answers

    if request.path.name != "test_gathering.py":
        for name in ("_AT_ONCE", "_LAST_LOOK"):
            monkeypatch.setattr(answers, name, 60.0)
