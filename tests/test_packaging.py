"""Builds the wheel and the sdist, installs the wheel in a new environment, and uses it there.

The new environment sees the packages of this one, because downloading torch takes minutes and 1.7 GB.
With SQSGD_CLEAN_INSTALL=1 pip downloads every package, which also shows that the requirements are complete.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from snippets import ROOT

import sqsgd

CLEAN = os.environ.get("SQSGD_CLEAN_INSTALL") == "1"


def run(*command, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel); the wheel is built from the sdist, so both are complete."""
    for package in ("build", "hatchling"):
        pytest.importorskip(package, reason=f"{package} is not installed: it comes with the dev extra")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ".", cwd=ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """The bin folder of a new environment with the wheel installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    programs = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet"]
    if CLEAN:
        run(*install, "--constraint", ROOT / "constraints.txt", f"{built[1]}[train]", cwd=folder)
    else:
        run(*install, "--no-deps", "--no-index", built[1], cwd=folder)
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        # After the environment's own packages; .pth files of editable installs are not read from there.
        others = [path for path in sys.path if Path(path).name == "site-packages"]
        (site / "others.pth").write_text("\n".join(others) + "\n")
    return programs


def test_the_version_is_defined_in_one_place(built):
    sdist, wheel = built
    assert f"sqsgd-{sqsgd.__version__}-" in wheel.name
    assert f"sqsgd-{sqsgd.__version__}." in sdist.name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["requires-python"] == ">=3.11"
    written = [
        path
        for path in (*(ROOT / "src").rglob("*.py"), ROOT / "mkdocs.yml", ROOT / "Makefile")
        if re.search(rf"(?<![\d.]){re.escape(sqsgd.__version__)}(?![\d.])", path.read_text())
    ]
    assert written == [ROOT / "src/sqsgd/__init__.py"]


def test_the_sdist_holds_what_the_tests_need_and_nothing_else(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("Makefile", "constraints.txt", "mkdocs.yml", "docs/index.md", "docs/hooks/reference.py"):
        assert needed in names
    for folder in ("examples", "experiments", "benchmarks", "tests", "src"):
        kept = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
        assert kept <= names
    assert not [name for name in names if re.search(r"__pycache__|\.nb[ci]$|^build/|^runs/|\.venv", name)]


def test_the_wheel_holds_the_package_its_types_and_the_papers_figures(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    assert {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")} <= names
    assert "sqsgd/py.typed" in names
    assert "sqsgd/runs/figures/figure3-tradeoff.toml" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "examples/"))]


def test_it_trains_in_a_new_environment(environment, tmp_path):
    """Without noise: nothing is compiled, as tests/test_public_names.py does."""
    where = run(environment / "python", "-c", "import sqsgd; print(sqsgd.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(environment.parent), "not the wheel's copy"
    small = ["--scheme", "fedsgd", "--model", "linear", "--rounds", "2", "--out", "run"]
    assert "accuracy" in run(environment / "sqsgd", "train", *small, cwd=tmp_path)
    assert {"config.toml", "metrics.jsonl", "model.safetensors", "summary.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    if CLEAN:
        assert '"works": true' in run(environment / "sqsgd", "doctor", "--json", cwd=tmp_path)
