"""These tests need Flower; without it they are skipped, and say so."""

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("federation")
pytest.importorskip("flwr", reason="needs flwr: pip install 'sqsgd[flower]'")
sys.path.insert(0, str(Path(__file__).parent))
