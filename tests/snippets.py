"""The fenced blocks of the documentation, and how each kind is run.

* ``sh``: one command per line. Commands of sqsgd are parsed with all their options. On the pages in EXECUTED
  they also run, with the options of SHORTER appended, so that a training of minutes takes seconds. ``make``
  targets and extras of ``pip`` must exist.
* ``python``: runs in a namespace of its own. ``toml``: must be a valid configuration.
* ``<!-- file: NAME -->`` before a block writes it to that file, for the blocks that follow.
* ``<!-- not run: WHY -->`` before a block: its commands are only parsed.
* ``text`` and ``pycon`` (run as doctests) show what a program prints. Every block must name a language.

The blocks of a page run in order in an otherwise empty folder with the ``experiments`` of the sources.
"""

import re
import shlex
import string
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from typed import typed

ROOT = Path(__file__).parents[1]
KNOWN = ("sh", "python", "toml", "text", "pycon", "diff")
ELSEWHERE = {
    "docs/adding-a-scheme.md": "tests/test_adding_a_scheme.py",
    "docs/collect.md": "tests/collect/test_collect_page.py",
    "docs/deploy.md": "tests/faults/test_up.py",
    "docs/encoder.md": "tests/test_docs.py",
    "docs/flower.md": "tests/flower/test_example_app.py",
    "docs/nvflare.md": "tests/nvflare/test_simulator.py",
    "docs/wire-format.md": "tests/test_docs.py",
}
"""Pages whose blocks belong together, and the tests that run them."""

EXECUTED = ("README.md", "docs/tutorial/first-run.md", "docs/tutorial/a-table.md", "docs/how-to/resume.md")
"""Pages whose commands run; other pages name mostly the same commands with other options."""

SHORTER = {
    "train": "--rounds 2 --clients 4",
    "train --config": "--rounds 2 --clients 4 --dataset mnist5k --model lenet5",
    "compare": "--rounds 1 --seeds 1 --rates 0.1 --model mlp --jobs 1",
    "compare --config": "--rounds 1 --dataset mnist5k --model mlp --jobs 1",
    "ablate": "--rounds 1 --dataset mnist5k --model mlp --jobs 1",
}
"""Options to append, by command and one of its options; none with ``--resume``, which takes no more."""

_BLOCK = re.compile(r"(?:^<!-- (file|not run): (.*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the comment before it."""

    language: str
    text: str
    directive: str = ""
    value: str = ""


def blocks(path):
    """All blocks of a document."""
    found = _BLOCK.findall((ROOT / path).read_text())
    return [Block(language, text, directive, value) for directive, value, language, text in found]


def pages():
    """Every document of the tree, as a path from its root."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(document.relative_to(ROOT)) for document in documents]


def run_block(block, folder, *, only_read=False):
    """Run a block in the folder, which is the working directory; AssertionError if it fails."""
    assert block.language in KNOWN, f"a block in {block.language!r}; known are {', '.join(KNOWN)}"
    if block.directive == "file":
        (folder / block.value).write_text(block.text)
    if block.language == "sh":
        given = {}
        for line in block.text.splitlines():
            words = shlex.split(string.Template(line).safe_substitute(given), comments=True)
            if words and re.fullmatch(r"[A-Z]+=.*", words[0]):  # NAME="words that several lines share"
                given |= [words[0].split("=", 1)]
            elif words:
                run_command(words, only_read=only_read or block.directive == "not run")
    elif block.language == "python" and block.directive == "":
        exec(compile(block.text, "a block", "exec"), {"__name__": "__main__"})  # noqa: S102
    elif block.language == "toml":
        check_toml(block.text)


def run_command(words, *, only_read=False):
    """One line of a shell block."""
    program, *arguments = words
    if program == "make":
        targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
        assert set(arguments) <= set(targets), f"make {' '.join(arguments)}: the targets are {targets}"
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"[\w,]+(?=\])", " ".join(arguments)):
            assert set(extra.split(",")) <= set(project["optional-dependencies"]), extra
    elif only_read and program in ("npm", "export"):
        pass
    elif program == "python":
        assert (ROOT / arguments[0]).exists(), arguments[0]  # tests/test_examples.py runs them all
    elif program == "sqsgd":
        read(arguments)
        # tests/deploy, tests/cli/test_cli_audit.py and tests/flower/test_simulation.py run those
        if not only_read and arguments[0] not in ("deploy", "audit") and "flower" not in arguments:
            done = typed(shorter(words))
            assert done.code == 0, f"{shlex.join(words)} ended with {done.code}: {done.error or done.out}"
    else:
        raise AssertionError(f"{program}: unsupported here; see tests/snippets.py")


def shorter(words):
    """The command with the options that make it quick."""
    if "--resume" in words:
        return words
    _, command, *rest = words
    key = next((f"{command} {word}" for word in rest if f"{command} {word}" in SHORTER), command)
    # Folders are named by the second, and two of these runs may start in the same one.
    place = ["--out", f"runs/{time.time_ns()}"] if command == "train" and "--out" not in rest else []
    return [*words, *SHORTER.get(key, "").split(), *place]


def read(arguments):
    """Parse the command without running it; unknown options and values fail."""
    import typer.main

    from sqsgd.cli import app

    command, name, rest = typer.main.get_command(app), "sqsgd", list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"unknown command {name}"
        command = command.commands[name]
    if not hasattr(command, "commands"):
        command.make_context(name, rest)


def check_toml(text):
    """A configuration of a run or of a sweep."""
    from sqsgd.runs.sweep import make_sweep
    from sqsgd.training.settings import make_config

    values = tomllib.loads(text)
    if "arms" in values or "panels" in values:
        make_sweep(values, "a block")
    else:
        make_config(values, "a block")
