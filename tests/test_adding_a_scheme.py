"""docs/adding-a-scheme.md is run: its file, its rows, the contract on them, and its own tests."""

import inspect
import itertools
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, ModuleType

import pytest
import test_contract
import test_estimates
import test_privacy
from cases import CASES, PRIVATE, Case
from test_docs import ROOT, blocks

import sqsgd.schemes
from sqsgd import make_scheme

PAGE = "docs/adding-a-scheme.md"
NAME = "sqsgd.schemes.geometric"
FILE, ROW, TESTED, OWN = blocks(PAGE, "python")


def executed(source: str, name: str, **given: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(given)
    sys.modules.setdefault(name, module)  # dataclasses look their module up
    exec(compile(source, f"{PAGE}: {name}", "exec"), module.__dict__)  # noqa: S102
    return module


MODULE = executed(FILE, NAME)
PAGE_CASES = executed(TESTED, "rows_of_the_page", Case=Case).CASES
del sys.modules[NAME], sys.modules["rows_of_the_page"]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """The page's module, and its row among the schemes."""
    monkeypatch.setitem(sys.modules, NAME, MODULE)
    row = executed(ROW, "row_of_the_page", MappingProxyType=MappingProxyType).SCHEMES
    monkeypatch.delitem(sys.modules, "row_of_the_page")
    monkeypatch.setattr(sqsgd.schemes, "SCHEMES", MappingProxyType({**sqsgd.schemes.SCHEMES, **row}))


def contract():
    """The tests over all (private, listable) rows, with every combination of their other parameters."""
    for module in (test_contract, test_estimates, test_privacy):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
            over = [mark.args[1] for mark in marks if mark.args[0] == "case"]
            if not over or over[0] not in (CASES, PRIVATE, test_privacy.LISTED):
                continue
            others = [mark for mark in marks if mark.args[0] != "case"]
            for values in itertools.product(*(mark.args[1] for mark in others)):
                arguments = {}
                for mark, value in zip(others, values, strict=True):
                    several = not isinstance(mark.args[0], str)
                    arguments |= (
                        dict(zip(mark.args[0], value, strict=True)) if several else {mark.args[0]: value}
                    )
                for case in PAGE_CASES:
                    yield pytest.param(function, {"case": case, **arguments}, id=f"{name}-{case}")


CONTRACT = list(contract())


@pytest.mark.parametrize(("function", "arguments"), CONTRACT)
def test_the_pages_scheme_keeps_the_contract(function, arguments):
    function(**arguments)


def test_the_contract_was_found():
    names = {function.__name__ for function, _ in (param.values for param in CONTRACT)}
    assert names >= {
        "test_a_seed_decides_the_message",
        "test_the_message_has_the_declared_size_and_keeps_the_budget",
        "test_mean_is_recovered",
        "test_exact_privacy",
        "test_what_is_sent_has_the_density_that_privacy_is_proved_of",
        "test_malformed_messages_are_refused_and_change_nothing",
        "test_nan_and_infinity_are_refused_before_anything_is_drawn",
    }


def own_tests():
    tree = compile(OWN, PAGE, "exec")
    return [name for name in tree.co_names if name.startswith("test_") and name != "test_privacy"]


@pytest.mark.parametrize("name", own_tests())
def test_the_pages_own_tests_pass(name, monkeypatch):
    function = getattr(executed(OWN, "tests_of_the_page"), name)
    monkeypatch.delitem(sys.modules, "tests_of_the_page")
    function(**dict.fromkeys(inspect.signature(function).parameters, monkeypatch))


def test_the_page_was_not_added_to_the_table():
    """Once it is, the page needs another example: this one must be new to a reader."""
    assert not (ROOT / "src/sqsgd/schemes/geometric.py").exists()


def test_a_budget_that_cannot_be_met_is_named():
    with pytest.raises(ValueError, match="bits = 2 do not hold one code of levels = 8; at least 3 do"):
        make_scheme("geometric", dim=10, epsilon=1.0, bits=2)


@pytest.mark.parametrize("block", [FILE, OWN])
def test_the_pages_code_is_as_clean_as_ours(block):
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check"], ["format", "--check"]):
        name = "src/sqsgd/schemes/geometric.py" if block is FILE else "tests/schemes/test_geometric.py"
        done = subprocess.run(
            [ruff, *command, "--stdin-filename", ROOT / name, "-"],
            input=block,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
