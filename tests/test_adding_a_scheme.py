"""Runs docs/adding-a-scheme.md: its file, its rows, the contract on them, and its own tests."""

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

PAGE = "docs/adding-a-scheme.md"
NAME = "sqsgd.schemes.geometric"
FILE, ROW, TESTED, OWN = blocks(PAGE, "python")


def executed(source: str, name: str, **given: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(given)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        exec(compile(source, f"{PAGE}: {name}", "exec"), module.__dict__)  # noqa: S102
    finally:
        del sys.modules[name]
    return module


MODULE = executed(FILE, NAME)
PAGE_CASES = executed(TESTED, "rows_of_the_page", Case=Case).CASES


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """The page's module, and its row among the schemes."""
    monkeypatch.setitem(sys.modules, NAME, MODULE)
    row = executed(ROW, "row_of_the_page", MappingProxyType=MappingProxyType).SCHEMES
    monkeypatch.setattr(sqsgd.schemes, "SCHEMES", MappingProxyType({**sqsgd.schemes.SCHEMES, **row}))


def parameters(function):
    """Names to lists of values, as in pytest's marks; several names at once are a tuple."""
    marks = getattr(function, "pytestmark", [])
    return {mark.args[0]: mark.args[1] for mark in marks if mark.name == "parametrize"}


def combinations(parameters):
    """Every combination of them, as arguments."""
    for values in itertools.product(*parameters.values()):
        arguments = {}
        for names, value in zip(parameters, values, strict=True):
            arguments |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        yield arguments


def contract():
    """The tests over all (private, listable) rows, with every combination of their other parameters."""
    for module in (test_contract, test_estimates, test_privacy):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            others = parameters(function)
            if others.pop("case", None) in (CASES, PRIVATE, test_privacy.LISTED, test_privacy.DISTINCT):
                for arguments, case in itertools.product(combinations(others), PAGE_CASES):
                    yield pytest.param(function, {"case": case, **arguments}, id=f"{name}-{case}")


CONTRACT = list(contract())


@pytest.mark.parametrize(("function", "arguments"), CONTRACT)
def test_the_pages_scheme_keeps_the_contract(function, arguments):
    function(**arguments)


def test_the_contract_was_found():
    names = {function.__name__ for function, _ in (param.values for param in CONTRACT)}
    assert len(names) > 8
    assert names >= {"test_mean_is_recovered", "test_exact_privacy"}


OWN_TESTS = [
    pytest.param(function, arguments, id=name)
    for name, function in inspect.getmembers(executed(OWN, "tests_of_the_page"), inspect.isfunction)
    if name.startswith("test_")
    for arguments in combinations(parameters(function))
]


@pytest.mark.parametrize(("function", "arguments"), OWN_TESTS)
def test_the_pages_own_tests_pass(function, arguments, monkeypatch):
    fixtures = {"monkeypatch": monkeypatch} if "monkeypatch" in inspect.signature(function).parameters else {}
    function(**arguments, **fixtures)


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
