"""Each page of docs/proofs is tied to the functions that it speaks about.

A page ends with a table of functions and digests. A digest is a hash of the function's syntax tree without
docstrings, comments and the texts of exceptions, so that rewording or reformatting changes nothing. When the
code of a function changes, its test fails until somebody has read the proof again and run

    python tests/test_proofs.py --update [docs/proofs/PAGE.md ...]

which lists what changed and writes the new digests. Functions that have moved are reported with the places
where a function of that name is now.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, PAGES = ROOT / "src", ROOT / "docs/proofs"
HEADING = "## Functions this page speaks about"
ROW = re.compile(r"^\| `([\w.]+)` \| `([0-9a-f]*)` \|$", re.MULTILINE)
NAME = re.compile(r"`(sqsgd(?:\.\w+)+)(?:\(\))?`")
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Unresolved(LookupError):
    """A page names something that is not in the source."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def members(node: ast.AST) -> dict[str, ast.AST]:
    """What the body of a module or class defines: functions, classes and assigned names."""
    found: dict[str, ast.AST] = {}
    for child in getattr(node, "body", []):
        if isinstance(child, DEFINITION):
            found[child.name] = child
        elif isinstance(child, ast.Assign):
            targets = [name for target in child.targets for name in ast.walk(target)]
            found |= {name.id: child for name in targets if isinstance(name, ast.Name)}
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            found[child.target.id] = child
    return found


@cache
def everything() -> dict[str, ast.AST]:
    """Every function, class, method and constant by its dotted name."""
    found: dict[str, ast.AST] = {}

    def add(prefix: str, node: ast.AST) -> None:
        for name, child in members(node).items():
            found[f"{prefix}.{name}"] = child
            if isinstance(child, ast.ClassDef):
                add(f"{prefix}.{name}", child)

    for name, tree in modules().items():
        add(name, tree)
    return found


def candidates(name: str) -> list[str]:
    """Where something of the same name is now: the same method of the same class, or the same function."""
    *path, last = name.split(".")
    tail = [path[-1], last] if path and path[-1][:1].isupper() else [last]
    tails = [other for other in everything() if other.split(".")[-len(tail) :] == tail]
    return tails or [other for other in everything() if other.split(".")[-1] == last]


def digest(name: str) -> str:
    """The hash of what a dotted name defines."""
    if name not in everything():
        where = ", ".join(candidates(name)[:5]) or "nothing of that name"
        raise Unresolved(f"{name} is not in the source any more; there is {where}")
    text = canonical(everything()[name])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def canonical(node: object, quiet: bool = False) -> str:
    """The syntax tree as text: no positions, docstrings, empty fields or, in ``raise``, texts (``quiet``).

    The same for all versions of Python, which ``ast.dump`` is not.
    """
    if isinstance(node, list):
        return "[" + ",".join(canonical(item, quiet) for item in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    quiet = quiet or isinstance(node, ast.Raise)
    if quiet and (isinstance(node, ast.JoinedStr) or is_text(node)):
        return "text"
    fields = []
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(node, DEFINITION):
            value = [child for child in value if not (isinstance(child, ast.Expr) and is_text(child.value))]
        if value not in (None, []) and field not in ("kind", "type_comment"):
            fields.append(f"{field}={canonical(value, quiet)}")
    return f"{type(node).__name__}({','.join(fields)})"


def is_text(node: object) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def pages() -> list[Path]:
    return sorted(PAGES.glob("*.md"))


def table(page: Path) -> dict[str, str]:
    """The functions of a page and their digests."""
    return dict(ROW.findall(page.read_text().partition(HEADING)[2]))


@pytest.mark.parametrize("page", [page.name for page in pages()])
def test_what_a_page_proves_is_what_runs(page):
    command = f"python tests/test_proofs.py --update docs/proofs/{page}"
    assert check(PAGES / page) == 0, f"read the proof again, then run {command}"


def test_the_index_speaks_of_every_scheme_and_links_every_page():
    from sqsgd import SCHEMES

    index = (PAGES / "index.md").read_text()
    assert [name for name in SCHEMES if f"`{name}`" not in index] == []
    assert [page.name for page in pages() if page.name != "index.md" and f"({page.name}" not in index] == []


def test_a_digest_ignores_words_and_sees_code():
    def of(source):
        return canonical(ast.parse(source).body[0])

    plain = of("def f(x):\n    if x < 0:\n        raise ValueError('no')\n    return x + 1")
    assert plain == of(
        'def f(x):\n    """Doc."""\n    if (x < 0):  # why\n        raise ValueError(f"{x}!")\n    return x+1'
    )
    assert plain != of("def f(x):\n    if x <= 0:\n        raise ValueError('no')\n    return x + 1")
    assert plain != of("def f(x):\n    if x < 0:\n        raise TypeError('no')\n    return x + 1")
    assert of("def f():\n    return 'a'") != of("def f():\n    return 'b'")


def test_the_update_writes_what_changed_and_says_what_moved(tmp_path, capsys):
    page = tmp_path / "page.md"
    rows = "| `sqsgd.elsewhere.InverseCdf.draw` | `00` |\n| `sqsgd._internal.exact.settle` | `11` |\n"
    page.write_text(f"`sqsgd.elsewhere.InverseCdf.draw` draws.\n\n{HEADING}\n\n{rows}")
    assert main([str(page), "--update"]) == 1
    told = capsys.readouterr().out
    assert "not in the source any more; there is sqsgd._internal.exact.InverseCdf.draw" in told
    assert table(page)["sqsgd._internal.exact.settle"] == digest("sqsgd._internal.exact.settle")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Compare the pages of docs/proofs with the source.")
    parser.add_argument("pages", nargs="*", type=Path, help="pages; default: all of docs/proofs")
    parser.add_argument("--update", action="store_true", help="write the new digests")
    options = parser.parse_args(arguments)
    chosen = options.pages or pages()
    return max([check(page, options.update) for page in chosen], default=0)


def check(page: Path, update: bool = False) -> int:
    """Report what differs; 1 if the page does not agree with the source afterwards."""
    status, (body, heading, rows) = 0, page.read_text().partition(HEADING)
    for name, known in ROW.findall(rows):
        try:
            new = digest(name)
        except Unresolved as error:
            say(page, str(error))
            status = 1
            continue
        if new != known:
            say(page, f"{name} has changed")
            rows = rows.replace(f"| `{name}` | `{known}` |", f"| `{name}` | `{new}` |")
            status = status if update else 1
    missing = {name for name in NAME.findall(body) if name not in modules()} - set(dict(ROW.findall(rows)))
    for name in sorted(missing):
        say(page, f"{name} is named in the text, but is not in the table")
        if update and name in everything():
            rows = f"{rows.rstrip()}\n| `{name}` | `{digest(name)}` |\n"
        else:
            status = 1
    if update:
        page.write_text(body + heading + rows)
    return status


def say(page: Path, words: str) -> None:
    sys.stdout.write(f"{page.name}: {words}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
