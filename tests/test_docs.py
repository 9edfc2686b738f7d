"""What the documents show is run, and what they say of the program is true."""

import re
from pathlib import Path

import numpy as np
import pytest

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.randomness import EVERYONE, PublicStream

ROOT = Path(__file__).parents[1]


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def identity(scheme) -> str:
    stages = [stage.identity for stage in scheme.transforms]
    return "\n".join([f"{scheme.name} {scheme.dim}", *stages, scheme.mechanism.identity])


def test_the_fingerprints_lines_are_the_documented_ones():
    scheme = make_scheme("sqsgd", dim=100, epsilon=50.0, bits=64)
    assert blocks("docs/wire-format.md", "text")[0].strip() == identity(scheme)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sqsgd", {}),
        ("sqsgd", {"levels": 5, "reach": 2.0}),
        ("sqsgd-paper", {"levels": 128, "adaptive": True}),
    ],
)
def test_the_documented_reader_reads_our_messages(name, options):
    reader: dict = {}
    exec(blocks("docs/wire-format.md", "python")[0], reader)  # noqa: S102
    scheme = make_scheme(name, dim=300, epsilon=200.0, bits=300, **options)
    fields = {"round": 9, "client": 4, "seed": 2**63 + 5, "dim": 300, "bound": 2.5, "clip": 1.25}
    task = Task(**fields)
    message = scheme.encode(np.linspace(-1, 1, 300), task, seeded_rng(3))
    layout = [(column.count, column.alphabet) for column in scheme.mechanism.layout]
    expected = [column.tolist() for column in scheme.open(message, task)]
    assert reader["read"](message, identity(scheme), fields, layout) == expected
    chosen = scheme.transforms[-2].coordinates(task, 300).tolist()
    assert reader["coordinates"](fields["seed"], 9, 4, 300, scheme.transforms[-2].size) == chosen
    words = PublicStream(seed=1, round=2, client=EVERYONE, purpose="signs 0").words(50)
    assert reader["keystream"](1, 2, EVERYONE, "signs 0", 200) == words.tobytes()


def test_the_readmes_python_runs(capsys):
    examples = blocks("README.md", "python")
    assert examples
    for example in examples:
        exec(example, {})  # noqa: S102
    assert capsys.readouterr().out


def test_every_command_is_in_the_readme():
    from sqsgd.cli import app

    text = (ROOT / "README.md").read_text()
    for command in app.registered_commands:
        assert f"sqsgd {command.name or command.callback.__name__}" in text
