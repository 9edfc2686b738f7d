"""What the documentation claims about the program is true."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import snippets

from sqsgd import Task, make_scheme, reconstruction_bound, seeded_rng
from sqsgd.randomness import EVERYONE, PublicStream

ROOT = snippets.ROOT


def blocks(path: str, language: str) -> list[str]:
    return [block.text for block in snippets.blocks(path) if block.language == language]


def identity(scheme) -> str:
    stages = [stage.identity for stage in scheme.transforms]
    return "\n".join([f"{scheme.name} {scheme.dim}", *stages, scheme.mechanism.identity])


def test_the_identity_is_the_documented_one():
    scheme = make_scheme("sqsgd", dim=100, epsilon=50.0, bits=64, code="signs")
    assert blocks("docs/wire-format.md", "text")[0].strip() == identity(scheme)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sqsgd", {"code": "signs"}),
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


def test_the_documented_reader_reads_reports_of_slots():
    reader: dict = {}
    exec(blocks("docs/wire-format.md", "python")[0], reader)  # noqa: S102
    scheme = replace(make_scheme("privunit-index", dim=300, epsilon=4.0), wire=2)
    fields = {"round": 9, "client": 4, "seed": 2**63 + 5, "dim": 300, "bound": 2.5, "clip": 0.0}
    task = Task(**{**fields, "clip": None})
    message = scheme.encode(np.linspace(-1, 1, 300), task, seeded_rng(3))
    layout = [(column.count, column.alphabet) for column in scheme.mechanism.layout]
    expected = [column.tolist() for column in scheme.open(message, task)]
    assert reader["read"](message, identity(scheme), fields, layout) == expected
    with pytest.raises(AssertionError):
        reader["read"](message, identity(scheme), {**fields, "client": 5}, layout)


@pytest.mark.parametrize("options", [{}, {"norm_epsilon": 2.0}])
def test_the_documented_reader_reads_signed_subsets(options):
    reader: dict = {}
    exec(blocks("docs/wire-format.md", "python")[0], reader)  # noqa: S102
    scheme = make_scheme("sqsgd-stateless", dim=300, epsilon=60.0, bits=300, code="sparse", **options)
    fields = {"round": 9, "client": 4, "seed": 2**63 + 5, "dim": 300, "bound": 2.5, "clip": 0.0}
    task = Task(**{**fields, "clip": None})
    subset, *symbol = scheme.mechanism.layout
    layout = [(subset.count, subset.size, "subset"), *((each.count, each.alphabet) for each in symbol)]
    assert subset.count > 3
    for number in range(20):
        message = scheme.encode(np.linspace(-1, 1, 300), task, seeded_rng(number))
        expected = [column.tolist() for column in scheme.open(message, task)]
        assert reader["read"](message, identity(scheme), fields, layout) == expected


def test_every_command_is_in_the_readme():
    from sqsgd.cli import app

    text = (ROOT / "README.md").read_text()
    for command in app.registered_commands:
        assert f"sqsgd {command.name or command.callback.__name__}" in text


def test_every_test_that_a_page_or_a_guarantee_names_exists():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "src").rglob("*.py")]
    named = set()
    for page in pages:
        for path, names in re.findall(
            r"(tests/[\w/]+\.py)((?:(?:,\s+and|,)?\s*::test_\w+)+)", page.read_text()
        ):
            named |= {(path, name) for name in re.findall(r"::(test_\w+)", names)}
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []


def test_every_guarantee_names_a_file_of_tests():
    silent, count = [], 0
    for page in sorted((ROOT / "src").rglob("*.py")):
        for section in re.findall(r"Guarantees\n +-+\n(.*?)(?:\n\n|\"\"\")", page.read_text(), re.DOTALL):
            for guarantee in re.split(r"^ +\* ", section, flags=re.MULTILINE)[1:]:
                files, count = re.findall(r"tests/[\w/]+\.py", guarantee), count + 1
                if not files or not all((ROOT / file).exists() for file in files):
                    silent.append(f"{page.name}: {guarantee}")
    assert count > 80
    assert silent == []


def test_the_privacy_page_has_the_numbers_of_the_default_run():
    from sqsgd.runs.config import RunConfig

    text, run = (ROOT / "docs/privacy.md").read_text(), RunConfig()
    size = make_scheme("sqsgd", dim=119850, epsilon=run.epsilon, bits=8 * run.bytes).mechanism.dim
    for dimensions in (size, 119850):
        for reports in (1, run.rounds):
            cosine = reconstruction_bound(reports * run.epsilon, dimensions)
            digits = 4 if cosine < 0.1 else 3
            assert f"| {math.ceil(cosine * 10**digits) / 10**digits:g}" in text
    assert f"{run.epsilon * run.rounds:,.0f}" in text
    assert f"{run.rounds} rounds" in text
    assert f"{size:,} coordinates" in text
    assert f"{math.floor(run.epsilon / math.log(10)) + 1} digits" in text
