"""The shape of the source tree: short files, rooms that import downward only, a test for every module."""

import ast
import contextlib
import importlib
import re
import sys
from pathlib import Path

from typer.testing import CliRunner

import sqsgd
from sqsgd.cli import app

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src/sqsgd", ROOT / "tests"
MODULES = {
    path.relative_to(SOURCE).with_suffix("").as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
    if not path.name.startswith("__")
}

PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
ROOMS = {
    name: set(re.findall(r"`(\w+)`", allowed))
    for name, allowed in re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
}
"""Rooms and front modules of the architecture page, from the top down, and what each may import."""
PUBLIC = {name: getattr(sqsgd, name).__module__[6:] for name in sqsgd.__all__ if name != "SCHEMES"}
"""Where the names that the package exports are defined."""

ONLY_IN = {
    "numba": ("kernels/",),
    "llvmlite": ("kernels/",),
    "torch": ("learning/", "audit/inversion", "experiments/runner"),  # the last: TensorBoard's writer
    "flwr": ("flower/",),
    "nvflare": ("nvflare/",),
    "vl_convert": ("report/",),
    "starlette": ("collect/",),
    "uvicorn": ("collect/",),
    "psycopg": ("collect/postgres",),
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
    """The folders are not packages: pytest would confuse two files of the same name."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(names) == sorted(set(names))


def room(module):
    """The room, or the module in front, that a dotted or slashed name below sqsgd stands in."""
    return module.replace("/", ".").partition(".")[0]


def rooms_imported():
    """For each room, the other rooms that its modules import, at load time or later."""
    found = {room(name): set() for name in MODULES}
    for name, tree in MODULES.items():
        for imported, _ in imports(tree):
            if imported.startswith("sqsgd.") and not imported.startswith("sqsgd.__"):
                found[room(name)].add(room(PUBLIC.get(imported[6:], imported[6:])))
    return {name: others - {name} for name, others in found.items()}


def test_the_architecture_page_has_the_import_graph():
    """Every import between rooms is in the page's table, and the table lists no other."""
    assert rooms_imported() == ROOMS


def test_rooms_import_downward_only():
    """The table is in order: a room imports from the rooms below it, so there is no cycle."""
    order = list(ROOMS)
    assert all(order.index(other) > order.index(name) for name in ROOMS for other in ROOMS[name])


def test_underscored_modules_stay_in_their_room():
    strays = [
        f"{name} imports {imported}"
        for name, tree in MODULES.items()
        for imported, _ in imports(tree)
        if "._" in imported and not imported.endswith("__") and room(imported[6:]) != room(name)
    ]
    assert strays == []


def walk(heading):
    """The functions of a walk of the architecture page, in its order."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"`(sqsgd\.[\w.]+)`", section)


def resolved(name):
    """The function or class that a dotted name stands for."""
    module, found = name, None
    while found is None:
        module, _, _ = module.rpartition(".")
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(module)
    for part in name.removeprefix(f"{module}.").split("."):
        found = getattr(found, part)
    return found


def test_the_walk_of_a_gradient_is_true(tmp_path):
    """A real round calls what the page names, and calls each for the first time in the page's order."""
    names = walk("The walk of one gradient")
    codes = {resolved(name).__code__: name for name in names}
    called = []

    def watch(frame, event, _argument):
        if event == "call" and frame.f_code in codes and codes[frame.f_code] not in called:
            called.append(codes[frame.f_code])

    options = ["train", "--rounds", "1", "--clients", "2", "--bytes", "16", "--epsilon", "50"]
    sys.setprofile(watch)
    try:
        done = CliRunner().invoke(app, [*options, "--out", str(tmp_path / "run")])
    finally:
        sys.setprofile(None)
    assert done.exit_code == 0, done.output
    assert called == names


def test_the_walk_of_a_report_names_what_is_there():
    names = walk("The walk of one Flower report")
    assert len(names) > 10
    assert all(callable(resolved(name)) for name in names)


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


def test_no_half_of_a_merge_was_left_in_a_page():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.toml")]
    assert len(pages) > 40
    marked = [str(page.relative_to(ROOT)) for page in pages if "\n<<<<<<< " in page.read_text()]
    assert marked == []
