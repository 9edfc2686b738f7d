"""The shape of the source tree: short files, rooms that import downward only, a test for every module."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src/sqsgd", ROOT / "tests"
MODULES = {
    path.relative_to(SOURCE).with_suffix("").as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
    if not path.name.startswith("__")
}

ROOMS = (
    "kernels", "checks", "files", "randomness", "numerics", "task", "codec", "core", "transforms",
    "mechanisms", "schemes", "planner", "ledger", "federated", "measurement", "learning", "runs", "node",
    "flower", "experiments", "report", "audit", "deploy", "cli",
)  # fmt: skip
"""Rooms and front modules from the basement up: each imports from those before it, at any time."""

ONLY_IN = {
    "numba": ("kernels/",),
    "llvmlite": ("kernels/",),
    "torch": ("learning/", "audit/inversion", "experiments/runner"),  # the last: TensorBoard's writer
    "flwr": ("flower/",),
    "plotly": ("report/",),
    "matplotlib": ("report/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
}

TESTED_IN = {
    "flower/app/": "flower/test_ready_app.py",  # started as a whole only
    "flower/ready_server": "flower/test_ready_app.py",
}
"""Modules whose tests do not bear their name, by module or by room, and the file to look into first."""


def longest(table, name):
    """The row of a module: its own, or that of the innermost room."""
    rows = [key for key in table if key == name or (key.endswith("/") and name.startswith(key))]
    return max(rows, key=len, default=None)


def own_test(name):
    """test_<module>.py in the folder that mirrors the module's; with the room's name where it helps."""
    *folders, stem = name.split("/")
    stem = stem.lstrip("_")
    places = [TESTS.joinpath(*folders, f"test_{stem}.py")]
    if folders:
        places.append(TESTS.joinpath(*folders, f"test_{folders[-1]}_{stem}.py"))
        places.append(TESTS.joinpath(*folders[:-1], f"test_{folders[-1]}_{stem}.py"))
    return next((place for place in places if place.exists()), None)


def imports(tree):
    """Every import, and whether it is made when the module is loaded."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in tree.body) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module, node in tree.body
            if node.module == "sqsgd":
                yield from ((f"sqsgd.{alias.name}", node in tree.body) for alias in node.names)


def test_files_stay_short():
    folders = ("src", "tests", "benchmarks", "docs", "examples")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    long = [str(path) for path in paths if len(path.read_text().splitlines()) > 500]
    assert long == []


def test_no_two_files_of_tests_have_one_name():
    """The folders are no packages: pytest would take the second file for the first, and end there."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(names) == sorted(set(names))


def room(module):
    """The room, or the module in front, that a dotted or slashed name below sqsgd stands in."""
    return module.replace("/", ".").partition(".")[0]


def test_rooms_import_downward_only():
    upward = [
        f"{name} imports {imported}"
        for name, tree in MODULES.items()
        for imported, _ in imports(tree)
        if imported.startswith("sqsgd.")
        and room(imported[6:]) in ROOMS
        and ROOMS.index(room(imported[6:])) > ROOMS.index(room(name))
    ]
    assert upward == []


def test_no_module_name_is_used_twice():
    names = [name.rpartition("/")[2] for name in MODULES if not name.startswith("flower/app/")]
    assert sorted(names) == sorted(set(names))


def test_heavy_packages_stay_in_their_rooms():
    strays = [
        f"{name} imports {imported}"
        for name, tree in MODULES.items()
        for imported, _ in imports(tree)
        if not name.startswith(ONLY_IN.get(imported.partition(".")[0], ""))
    ]
    assert strays == []


def test_every_module_has_a_test_where_one_would_look():
    """Of its own name in the folder that mirrors its own, or the file that TESTED_IN names."""
    for name in MODULES:
        row = longest(TESTED_IN, name)
        if own_test(name) is not None:
            assert row != name, f"{name} has a test of its own: take it out of TESTED_IN"
        else:
            assert row is not None, f"{name} has no test of its name: write one, or name one in TESTED_IN"
            assert (TESTS / TESTED_IN[row]).exists(), TESTED_IN[row]


def test_the_tables_name_what_is_there():
    for name in TESTED_IN:
        assert (SOURCE / name).is_dir() if name.endswith("/") else name in MODULES, name
    assert set(ROOMS) == {room(name) for name in MODULES}


def test_whatever_is_public_says_what_it_is():
    silent = [name for name, tree in MODULES.items() if not ast.get_docstring(tree)]
    for name, tree in MODULES.items():
        public = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        silent += [
            f"{name}.{node.name}"
            for node in public
            if not node.name.startswith("_") and not ast.get_docstring(node)
        ]
    assert silent == []
