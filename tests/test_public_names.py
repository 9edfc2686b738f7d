"""The public names: they exist, are documented, and importing them loads nothing heavy."""

import doctest
import inspect
import subprocess
import sys

import pytest

import sqsgd

HEAVY = ("torch", "numba", "llvmlite", "flwr", "scipy", "vl_convert", "matplotlib", "jinja2")
HEAVY += ("starlette", "uvicorn", "psycopg", "mlxtend", "pandas")


def described(name):
    """The docstring, or the string under a constant."""
    if name == "SCHEMES":
        source = inspect.getsource(sqsgd.schemes)
        return source.split("SCHEMES: MappingProxyType")[1].split('"""')[1]
    return inspect.getdoc(getattr(sqsgd, name))


IN_THE_TUTORIALS = {
    "CentralGuarantee",
    "Device",
    "MalformedReport",
    "Plan",
    "PrivateClassifier",
    "PrivateRegressor",
    "RunConfig",
    "TrainedRun",
    "Transform",
    "train",
}


def test_every_public_name_is_described():
    assert [name for name in sqsgd.__all__ if not described(name)] == []


@pytest.mark.parametrize("name", sorted(set(sqsgd.__all__) - IN_THE_TUTORIALS))
def test_every_public_name_has_an_example_that_runs(name):
    """pytest --doctest-modules runs the examples; this test finds missing ones, also of constants."""
    module = sys.modules.get(getattr(getattr(sqsgd, name), "__module__", None), sqsgd)
    scope = {**vars(sqsgd), **vars(module)}
    test = doctest.DocTestParser().get_doctest(described(name), scope, name, None, None)
    assert test.examples, f"{name} has no example"
    failed = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test)
    assert failed.failed == 0


LIGHT = (
    "import sqsgd",
    "sqsgd.PrivQuant(512, 16, 400.0).scale",
    "sqsgd.make_scheme('sqsgd', dim=9, epsilon=9.0, bytes=1)",
    "import sqsgd.report.page, sqsgd.report.charts",
    "from sqsgd.learning import files; files.dataset_status('/nowhere')",
    "import sqsgd.cli, contextlib, io\n"
    "sys.argv = ['sqsgd', '--help']\n"
    "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): sqsgd.cli.main()",
)


def test_light_use_loads_nothing_heavy():
    """One after the other in one process: printed is what each of them has loaded."""
    told = f"print([name for name in {HEAVY} if name in sys.modules])"
    code = "\n".join(["import sys", *(f"{use}\n{told}" for use in LIGHT)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"] * len(LIGHT)


def test_kernels_work_where_nothing_can_be_written(tmp_path):
    """numba refuses to cache there; the kernels are then compiled in memory."""
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from sqsgd.core.codec import Column\n"
        "print(Column(9, 2).pack(np.ones(9, np.uint8)).hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ff01"
