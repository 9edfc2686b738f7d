"""Where the JavaScript client is, and why its tests are skipped where it cannot run."""

import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "clients/js"


def client():
    """The folder of the built client; skips the test if Node or the build is missing."""
    if shutil.which("node") is None:
        pytest.skip("no Node: apt-get install nodejs npm, then make js")
    built = FOLDER / "dist/sqsgd.min.js"
    if not built.exists():
        pytest.skip("clients/js is not built: make js")
    if any(path.stat().st_mtime > built.stat().st_mtime for path in (FOLDER / "src").iterdir()):
        pytest.skip("clients/js has changed since it was built: make js")
    return FOLDER
