"""The shape of the source tree: rooms import only what is below them, heavy packages stay in their rooms."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/sqsgd"
LAYERS = (
    ("cli",),
    ("runs",),
    ("audit", "federation"),
    ("report",),
    ("training",),
    ("learning", "privacy"),
    ("schemes",),
    ("mechanisms",),
    ("core",),
    ("_internal",),
)
"""From the top down. A room imports rooms of lower layers; within ``federation``, see INSIDE."""
INSIDE = {"deploy": {"flower", "node"}, "flower": {"node"}, "nvflare": {"node"}, "collect": {"node"}}
"""What each part of ``federation`` may import of the others."""
ONLY_IN = {
    "numba": ("_internal/kernels/",),
    "torch": ("learning/", "runs/train"),
    "flwr": ("federation/flower/",),
    "nvflare": ("federation/nvflare/",),
    "vl_convert": ("report/",),
    "starlette": ("federation/collect/",),
    "uvicorn": ("federation/collect/",),
    "psycopg": ("federation/collect/",),
    "pyhpke": ("federation/collect/",),
    "scipy": ("audit/", "training/"),
    "typer": ("cli/",),
    "rich": ("cli/",),
}
DOORS = {"__init__", "__main__", "flower", "nvflare"}
"""Modules at the top: the public names, ``python -m sqsgd``, and short names of the adapters."""


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).with_suffix("").as_posix(), ast.parse(path.read_text())


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "sqsgd":
            yield from (f"sqsgd.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def layer(room):
    return next((i for i, rooms in enumerate(LAYERS) if room in rooms), None)


def may_import(name, imported):
    """Whether module ``name`` (slashed) may import ``imported`` (dotted, below sqsgd)."""
    room, *inner = name.split("/")
    other, *rest = imported.split(".")
    if room in DOORS or other.startswith("__"):
        return True
    if layer(other) is None:
        return room == "cli"  # which uses the public names
    if room != other:
        return layer(other) > layer(room)
    if room == "federation" and len(inner) > 1 and rest and rest[0] != inner[0]:
        return rest[0] in INSIDE.get(inner[0], ())
    return True


def test_rooms_import_only_what_is_below():
    strays = [
        f"{name} imports {imported}"
        for name, tree in modules()
        for imported in imports(tree)
        if imported.startswith("sqsgd.") and not may_import(name, imported.removeprefix("sqsgd."))
    ]
    assert strays == []


def test_a_wrong_import_is_noticed():
    assert not may_import("core/scheme", "training.engine")
    assert not may_import("core/scheme", "something")
    assert not may_import("federation/node/answer", "federation.flower.mod")
    assert may_import("federation/flower/mod", "federation.node.answer")


def test_heavy_packages_stay_in_their_rooms():
    strays = [
        f"{name} imports {imported}"
        for name, tree in modules()
        for imported in imports(tree)
        if not name.startswith(ONLY_IN.get(imported.partition(".")[0], ""))
    ]
    assert strays == []


def test_only_the_owners_command_adds_to_a_budget():
    """No path from a server's request leads there: docs/proofs/ledger.md."""
    called = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "top_up(" in path.read_text()
    }
    assert called == {"privacy/ledger.py", "federation/deploy/node.py", "cli/ledger.py"}
