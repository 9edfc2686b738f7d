"""Runs every command and every snippet of the documentation, as described in tests/snippets.py."""

import dataclasses
import shlex

import pytest
from snippets import ELSEWHERE, ROOT, Block, blocks, pages, run_block, run_command, shorter

from sqsgd.training import sweep

RUN = [page for page in pages() if page not in ELSEWHERE and blocks(page)]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """An empty working folder, and the smallest sweeps."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    load = sweep.load_sweep

    def first(values):
        return [{**panel, "arms": panel["arms"][:2]} if "arms" in panel else panel for panel in values[:1]]

    def smallest(*arguments, **options):
        whole = load(*arguments, **options)
        return dataclasses.replace(
            whole,
            arms=whole.arms[:2],
            panels=tuple(first(whole.panels)),
            rates=whole.rates[:1],
            seeds=whole.seeds[:1],
        )

    monkeypatch.setattr(sweep, "load_sweep", smallest)
    return tmp_path


@pytest.mark.parametrize("page", RUN)
def test_everything_that_a_page_shows_runs(page, small):
    from sqsgd.privacy.ledger import Ledger

    if "client.ledger" in (ROOT / page).read_text():  # create the ledger that the page shows
        Ledger.create(small / "client.ledger", max_epsilon=1000.0)
    for block in blocks(page):
        run_block(block, small)


def test_the_pages_that_other_tests_run_exist():
    for page, test in ELSEWHERE.items():
        assert page in pages()
        assert page in (ROOT / test).read_text(), f"{test} does not run {page}"


@pytest.mark.parametrize("page", ELSEWHERE)
def test_the_extras_that_those_pages_install_exist(page):
    for block in blocks(page):
        commands = [shlex.split(line) for line in block.text.splitlines() if line.startswith("pip ")]
        assert block.language == "sh" or not commands, "commands belong into sh blocks"
        for words in commands:
            run_command(words)


def test_the_documents_were_found():
    assert len(RUN) >= 8
    found = [block for page in RUN for block in blocks(page)]
    assert sum(block.language == "python" for block in found) >= 6
    assert sum(block.text.count("sqsgd train") for block in found if block.language == "sh") >= 10


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (Block("sh", "sqsgd schemes --dims 3\n"), "dims"),
        (Block("sh", "sqsgd schemes --dims 3\n", "not run", "because"), "dims"),
        (Block("sh", "sqsgd trian\n"), "trian"),
        (Block("sh", "sqsgd schemes --epsilon -3\n"), "epsilon = -3"),
        (Block("sh", "make tests\n"), "tests"),
        (Block("sh", "pip install '.[trane]'\n"), "trane"),
        (Block("sh", "curl somewhere\n"), "unsupported here"),
        (Block("python", "import sqsgd\nsqsgd.make_schema\n"), "make_schema"),
        (Block("toml", 'shceme = "sqsgd"\n'), "shceme"),
        (Block("", "sqsgd train\n"), "a block in ''"),
        (Block("text", "$ sqsgd train --rounds 3\n"), "commands belong"),
    ],
)
def test_a_wrong_block_fails(block, words, small):
    with pytest.raises(Exception, match=words):
        run_block(block, small)


def test_commands_are_shortened_by_appended_options():
    assert shorter(["sqsgd", "train", "--rounds", "9"])[4:8] == ["--rounds", "2", "--clients", "4"]
    assert shorter(["sqsgd", "train", "--resume", "--out", "x"])[-1] == "x"
    assert shorter(["sqsgd", "plan"]) == ["sqsgd", "plan"]
