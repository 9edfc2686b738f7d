"""Every command and snippet of the documentation runs (tests/snippets.py), and the site builds."""

import dataclasses
import subprocess
import sys

import pytest
from snippets import ELSEWHERE, EXECUTED, ROOT, Block, blocks, pages, run_block

from sqsgd.runs import sweep

RUN = [page for page in pages() if page not in ELSEWHERE and blocks(page)]


@pytest.fixture
def small(monkeypatch, tmp_path, one_process):
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
        run_block(block, small, only_read=page not in EXECUTED)


def test_the_pages_that_other_tests_run_exist():
    for page, test in ELSEWHERE.items():
        assert page in pages()
        assert page in (ROOT / test).read_text(), f"{test} does not run {page}"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (Block("sh", "sqsgd schemes --dims 3\n"), "dims"),
        (Block("sh", "sqsgd schemes --dims 3\n", "not run", "because"), "dims"),
        (Block("sh", "sqsgd trian\n"), "trian"),
        (Block("sh", "make tests\n"), "tests"),
        (Block("sh", "pip install '.[trane]'\n"), "trane"),
        (Block("python", "import sqsgd\nsqsgd.make_schema\n"), "make_schema"),
        (Block("toml", 'shceme = "sqsgd"\n'), "shceme"),
    ],
)
def test_a_wrong_block_fails(block, words, small):
    with pytest.raises(Exception, match=words):
        run_block(block, small)


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    pytest.importorskip("flwr", reason="the flower extra is not installed")
    offline = "import socket\ndef refused(*_): raise OSError('the build asked for the network')\n"
    offline += "socket.socket.connect = socket.getaddrinfo = refused\n"
    (tmp_path / "sitecustomize.py").write_text(offline)
    path = f"{tmp_path}:{ROOT / 'src'}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
