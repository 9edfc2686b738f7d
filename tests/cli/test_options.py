"""Values of options, defaults that help shows, progress, and stopping between rounds."""

import logging
import re
import signal
import time

import pytest
from typer.main import get_command

from sqsgd.cli import app, options
from sqsgd.cli.options import (
    Progress,
    columns,
    scheme_options,
    stopping_between_rounds,
)
from sqsgd.training.settings import make_config


def test_values_of_options_have_the_types_of_toml():
    pairs = ["levels=8", "adaptive=true", "reach=1.5", "kind=fast", "name=", 'text="8"', "formula=a=b"]
    assert scheme_options(pairs) == {
        "levels": 8, "adaptive": True, "reach": 1.5, "kind": "fast", "name": "", "text": "8",
        "formula": "a=b",
    }  # fmt: skip


def test_columns_are_ranges_or_categories():
    found = columns(["capital.gain=-4:1e3", "sex=f, m", "code=[1,2]"])
    assert found == {
        "ranges": {"capital.gain": [-4.0, 1000.0]}, "categories": {"sex": ["f", "m"], "code": ["[1", "2]"]}
    }  # fmt: skip
    for wrong in ("age", "age=", "=0:1", "age=x:y", "age=a:b,c:d", "age=0:1:2", "age=:120"):
        with pytest.raises(ValueError, match=f"column = '{wrong}' must look like name=low:high or name=a,b"):
            columns([wrong])
    with pytest.raises(ValueError, match="column age is given twice"):
        columns(["age=0:1", "age=0,1"])


def test_every_setting_of_a_run_is_an_option_with_its_default():
    options = {each.name: each.default for each in get_command(app).commands["train"].params}
    for name, value in vars(make_config({"participation": "once"})).items():
        assert name in ("options", "ranges", "categories", "participation") or options[name] == value


BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _usual_handlers():
    """Python's own: a shell starts commands in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def handlers():
    return [signal.getsignal(each) for each in BOTH]


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_recorded_and_announced(number, capfd):
    before = handlers()
    with stopping_between_rounds() as seen:
        assert seen == []
        signal.raise_signal(number)  # os.kill may reach another thread, and then us later
        assert seen == [number]
    assert handlers() == before
    assert capfd.readouterr().err == "stopping after this round; press again to stop now\n"


def test_the_second_signal_interrupts():
    with stopping_between_rounds() as seen:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]


def test_nothing_is_silent(capsys, monkeypatch):
    """A step that says nothing is shown again; what the library logs is shown; then all is as before."""
    assert options._SILENT < 2  # seconds
    monkeypatch.setattr(options, "_SILENT", 0.3)
    log = logging.getLogger("sqsgd")
    before = (log.level, list(log.handlers))
    with Progress(quiet=False) as progress:
        log.debug("reading %s", "mnist")
        time.sleep(1.2)  # two lines or more
        progress.show("round 1 of 3", 1, 3)
        progress.show("round 2 of 3", 2, 3)
    first, again, *_, last = capsys.readouterr().err.splitlines()
    assert first == "reading mnist"
    assert re.fullmatch(r"reading mnist \(\d+ s\)", again)
    assert last.startswith("round 1 of 3")  # the first that counts is shown at once
    assert (log.level, log.handlers) == before
    with Progress(quiet=True) as progress:
        progress.show("round 1 of 3", 1, 3)
    assert capsys.readouterr().err == ""
