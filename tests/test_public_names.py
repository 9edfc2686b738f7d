"""What the package exports, what it loads, and that the table of names is true."""

import subprocess
import sys
from pathlib import Path

import pytest

import sqsgd

CONTRACT = {
    "PrivQuant",
    "ScalarDP",
    "secure_rng",
    "seeded_rng",
    "SCHEMES",
    "make_scheme",
    "Task",
    "MalformedReport",
}
HEAVY = ("torch", "numba", "flwr", "plotly", "matplotlib", "llvmlite")


def test_every_exported_name_exists_and_is_documented():
    assert set(sqsgd.__all__) >= CONTRACT
    for name in sqsgd.__all__:
        assert hasattr(sqsgd, name), name
        assert name == "SCHEMES" or getattr(sqsgd, name).__doc__, name


@pytest.mark.parametrize(
    "code",
    [
        "import sqsgd",
        "import sqsgd; sqsgd.PrivQuant(512, 16, 400.0).scale",
        "import sqsgd; sqsgd.make_scheme('sqsgd', dim=9, epsilon=9.0, bits=8)",
        "import sqsgd.cli, contextlib, io\n"
        "sys.argv = ['sqsgd', '--help']\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): sqsgd.cli.main()",
    ],
)
def test_light_use_loads_nothing_heavy(code):
    check = f"import sys\n{code}\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_short():
    root = Path(__file__).parents[1]
    long = [
        str(path)
        for folder in ("src", "tests", "benchmarks")
        for path in (root / folder).rglob("*.py")
        if len(path.read_text().splitlines()) > 300
    ]
    assert long == []


def test_kernels_work_where_nothing_can_be_written(tmp_path):
    """numba refuses to cache there; the kernels are then compiled in memory."""
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np, sqsgd\n"
        "s = sqsgd.make_scheme('sqsgd', dim=9, epsilon=9.0, bits=16)\n"
        "t = sqsgd.Task(round=0, client=0, seed=0, dim=9, bound=1.0)\n"
        "print(len(s.encode(np.ones(9), t, sqsgd.secure_rng())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "19"
