"""`sqsgd doctor` finds what is wrong and says how to fix it."""

import json
import sys

import pytest
from typed import typed

from sqsgd.cli import doctor


def examined():
    return {check.name: check for check in doctor.examine("/nowhere")}


def test_the_basics_work_here_and_what_is_missing_has_a_fix():
    checks = examined()
    for name in ("entropy", "kernels", "train", "mnist5k"):
        assert checks[name].state == "good"
    assert checks["mnist"].state == "missing"
    assert "sqsgd data fetch mnist --data-dir /nowhere" in checks["mnist"].fix
    assert all((check.state == "good") != bool(check.fix) for check in checks.values())
    table = typed("sqsgd doctor")
    assert (table.code, "The basics work." in table.out) == (0, True)


def broken(*_arguments, **_options):
    raise OSError("no such luck")


@pytest.mark.parametrize(("name", "check"), [("os.getrandom", "entropy"), ("sqsgd.make_scheme", "kernels")])
def test_what_fails_to_run_is_broken(monkeypatch, name, check):
    monkeypatch.setattr(name, broken)
    done = typed("sqsgd doctor --json")
    answer = json.loads(done.out)
    (found,) = (each for each in answer["checks"] if each["name"] == check)
    assert (done.code, answer["works"]) == (1, False)
    assert (found["state"], found["found"]) == ("broken", "no such luck")
    assert "pip install" in found["fix"]


def test_generators_that_repeat_are_not_entropy(monkeypatch):
    from sqsgd import seeded_rng

    monkeypatch.setattr("sqsgd.core.random.secure_rng", lambda: seeded_rng(0))
    assert "the same 16 bytes" in examined()["entropy"].found


def test_an_extra_that_does_not_load_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tomli_w", None)  # import then raises ModuleNotFoundError
    train = examined()["train"]
    assert (train.state, "tomli_w" in train.found, "[train]" in train.fix) == ("missing", True, True)
