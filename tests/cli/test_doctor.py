"""`sqsgd doctor`: its table and its JSON; it finds what is wrong and says how to fix it."""

import importlib.metadata
import json
import sys

import pytest
from typed import typed
from typer.testing import CliRunner

from sqsgd.cli import app, doctor
from sqsgd.training.settings import ENGINES


def examined():
    return {(check.group, check.name): check for check in doctor.examine("/nowhere")}


def command(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_the_basics_work_here_and_what_is_missing_has_a_fix():
    checks = examined()
    assert all(check.state == "good" for check in checks.values() if check.basic)
    assert checks["basics", "numba"].found == importlib.metadata.version("numba")
    assert checks["engines", "local"].state == "good"
    assert checks["data sets", "mnist5k"].state == "good"
    assert checks["data sets", "mnist"].state == "missing"
    assert "sqsgd data fetch mnist --data-dir /nowhere" in checks["data sets", "mnist"].fix
    assert all((check.state == "good") != bool(check.fix) for check in checks.values())


def test_every_engine_names_the_extras_it_needs():
    assert set(ENGINES) <= set(doctor.ENGINE_NEEDS)
    assert {extra for extras in doctor.ENGINE_NEEDS.values() for extra in extras} <= set(doctor.EXTRAS)


def test_a_package_that_is_missing_or_too_old_is_found(monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.5.0" if name == "torch" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    checks = examined()
    assert checks["basics", "numba"].state == "missing"
    torch = checks["extra train", "torch"]
    assert (torch.state, torch.found, torch.needed) == ("broken", "2.5.0", ">=2.6")
    assert "pip install" in torch.fix
    assert "[train]" in torch.fix
    done = command()
    assert done.exit_code == 1
    assert "do NOT work" in done.stdout


def broken(*_arguments, **_options):
    raise OSError("no such luck")


@pytest.mark.parametrize(
    ("name", "check"), [("os.getrandom", "entropy"), ("sqsgd.make_scheme", "kernels")], ids=["os", "sqsgd"]
)
def test_what_fails_to_run_is_broken_even_if_its_version_is_right(monkeypatch, name, check):
    monkeypatch.setattr(name, broken)
    found = examined()["basics", check]
    assert found.state == "broken"
    assert "no such luck" in found.found
    assert command("--json").exit_code == 1


def test_generators_that_repeat_are_not_entropy(monkeypatch):
    from sqsgd import seeded_rng

    monkeypatch.setattr("sqsgd.core.random.secure_rng", lambda: seeded_rng(0))
    assert "the same 16 bytes" in examined()["basics", "entropy"].found


def test_an_engine_whose_library_does_not_load_is_broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "tomli_w", None)  # import then raises ModuleNotFoundError
    engine = examined()["engines", "local"]
    assert engine.state == "missing"
    assert "tomli_w" in engine.found
    assert "[train]" in engine.fix


def test_a_tree_that_is_not_installed_says_so(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    for each in ("requires", "distribution"):
        monkeypatch.setattr(importlib.metadata, each, absent)
    assert examined()["basics", "sqsgd"].fix == "pip install --editable ."


@pytest.mark.parametrize(
    ("origin", "fix"),
    [
        ({}, "pip install --upgrade 'sqsgd[flower]'"),
        (
            {"url": "file:///src/my%20sqsgd", "dir_info": {"editable": True}},
            "pip install --editable '/src/my sqsgd[flower]'",
        ),
        ({"url": "file:///sqsgd.whl"}, "pip install 'sqsgd[flower] @ file:///sqsgd.whl'"),
    ],
)
def test_the_command_that_fixes_it_fits_the_way_it_was_installed(monkeypatch, origin, fix):
    class Distribution:
        def read_text(self, _name):
            return json.dumps(origin)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Distribution())
    assert doctor._install("flower") == fix


def test_a_missing_browser_is_reported(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SQSGD_CHROMIUM", raising=False)
    assert examined()["for contributors", "chromium"].state == "missing"
    monkeypatch.setenv("SQSGD_CHROMIUM", "/a/browser")
    assert ("for contributors", "chromium") not in examined()


def test_the_command_prints_json_and_a_table():
    done = typed("sqsgd doctor --json")
    assert done.code == 0
    answer = json.loads(done.out)
    assert answer["works"] is True
    assert {"group", "name", "state", "found", "needed", "fix", "basic"} == set(answer["checks"][0])
    table = typed("sqsgd doctor")
    assert table.code == 0
    assert "The basics work." in table.out


def test_each_fix_is_printed_once(monkeypatch):
    """Every missing dataset has its own command; all packages of an extra share one."""
    monkeypatch.setenv("COLUMNS", "1000")
    checks = json.loads(typed("sqsgd doctor --data-dir /nowhere --json").out)["checks"]
    shown = typed("sqsgd doctor --data-dir /nowhere").out.split("To fix what is missing or broken:\n")[1]
    fixes = {check["fix"] for check in checks} - {""}
    assert "sqsgd data fetch mnist --data-dir /nowhere" in str(fixes)
    lines = shown.splitlines()
    assert lines[1::2] == [f"    {fix}" for fix in dict.fromkeys(check["fix"] for check in checks) if fix]
    for check in checks:
        if check["fix"]:
            assert check["name"] in lines[lines.index(f"    {check['fix']}") - 1]
