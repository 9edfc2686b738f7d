"""What is used of Flower beyond its documented interface: each name is there, and no other is imported."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typed import typed

from sqsgd.flower import internals
from sqsgd.flower.internals import DOCUMENTED, INTERNALS, FlowerChanged, Internal, internal

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/sqsgd").rglob("*.py"))


@pytest.mark.parametrize("name", INTERNALS)
def test_flower_has_it_and_it_takes_these_arguments(name, monkeypatch):
    monkeypatch.setattr(internals, "INTERNALS", {name: INTERNALS[name]})
    assert list(internals.changes()) == []
    user = (ROOT / "src/sqsgd/flower" / f"{INTERNALS[name].user}.py").read_text()
    assert name.partition(":")[2] in user


def names_of_flowers(file: Path) -> set[str]:
    """Modules of Flower that a file imports, and those that it names in a string, for ``import_module``."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value)
    return {name for name in found if name.startswith("flwr.")}


def test_nothing_else_that_is_undocumented_is_imported():
    allowed = {*DOCUMENTED, *INTERNALS}
    for file in SOURCES:
        if file.name != "internals.py":
            assert names_of_flowers(file) <= allowed, file


def test_the_search_finds_what_is_not_in_the_table(tmp_path):
    """So that the test above is seen to fail."""
    file = tmp_path / "some.py"
    file.write_text('from flwr.supercore.logger import log\nimport_module("flwr.cli.run")\nimport flwr.app\n')
    assert names_of_flowers(file) == {"flwr.supercore.logger", "flwr.cli.run", "flwr.app"}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "flwr.supercore.nowhere:log",
            (),
            "has no flwr.supercore.nowhere:log, which sqsgd.flower.parts uses",
        ),
        ("flwr.cli.build:pack", (), "has no flwr.cli.build:pack"),
        (
            "flwr.cli.build:build_fab_from_disk",
            ("app", "folder"),
            "build_fab_from_disk takes no folder, which",
        ),
    ],
)
def test_what_has_changed_is_named_with_who_uses_it(monkeypatch, name, arguments, words):
    monkeypatch.setattr(internals, "INTERNALS", {name: Internal(user="parts", arguments=arguments)})
    (said,) = internals.changes()
    assert words in said
    assert said.startswith(f"flwr {internals.version()}")
    if not arguments:
        with pytest.raises(FlowerChanged, match=r"install a version from 1\.38 to 1\.42"):
            internal(name)


@pytest.mark.parametrize("version", ["1.37.2", "1.43.0", "2.0.0", "1.x", "one"])
def test_versions_that_were_not_tested_are_named(monkeypatch, version):
    monkeypatch.setattr(internals, "version", lambda: version)
    assert internals.untested() == f"flwr {version}: versions 1.38 to 1.42 were tested"


@pytest.mark.parametrize("version", ["1.38.0", "1.41.3", "1.42.0rc1"])
def test_versions_that_were_tested_are_not(monkeypatch, version):
    monkeypatch.setattr(internals, "version", lambda: version)
    assert internals.untested() == ""


@pytest.mark.parametrize("version", ["1.38.0", "1.40.3"])
def test_versions_whose_nodes_the_gate_does_not_serve_are_not_deployed(monkeypatch, tmp_path, version):
    monkeypatch.setattr(internals, "version", lambda: version)
    done = typed(["sqsgd", "deploy", "init", tmp_path / "federation"])
    assert done.code == 2
    assert f"flwr {version}: versions 1.41 to 1.42 were tested for sqsgd deploy; pip install" in done.error
    assert not (tmp_path / "federation").exists()


def test_what_is_installed_is_what_was_tested():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "flower"
    ]
    (oldest, newest) = internals.OLDEST, internals.NEWEST
    assert f"flwr[simulation]>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}" in declared


def test_the_command_says_that_all_is_there():
    done = subprocess.run([sys.executable, "-m", "sqsgd.flower.internals"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (
        0, f"flwr {internals.version()} has all {len(INTERNALS)} names that are used\n",
    )  # fmt: skip
