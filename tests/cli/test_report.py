"""`sqsgd report`, and the page that a finished run gets."""

import json
import sys

import pytest
from folders import write_run
from typed import typed

from sqsgd.cli.report import try_write_report


def test_a_page_and_its_figures(tmp_path):
    write_run(tmp_path / "runs/a")
    (tmp_path / "runs/b").mkdir()
    (tmp_path / "runs/b/error.txt").write_text("out of memory\n")
    out, svg = tmp_path / "page.html", tmp_path / "svg"
    done = typed(["sqsgd", "report", tmp_path / "runs", "--out", out, "--svg", svg, "--json"])
    assert done.code == 0
    page, *figures = json.loads(done.out)
    assert page == str(out)
    assert "<title>" in out.read_text()[:2000]
    assert sorted(figures) == sorted(str(path) for path in svg.iterdir())
    assert {path.suffix for path in svg.iterdir()} == {".svg"}
    assert done.error.startswith("not shown: ")
    assert "out of memory" in done.error


def test_the_path_of_the_page_is_printed(tmp_path):
    run = write_run(tmp_path / "a")
    done = typed(["sqsgd", "report", run, "--out", tmp_path / "page.htm", "--title", "Mine"])
    assert (done.code, done.out, done.error) == (0, f"written to {tmp_path / 'page.htm'}\n", "")
    assert "<h1>Mine</h1>" in (tmp_path / "page.htm").read_text()


def test_files_that_are_not_pages_are_not_overwritten(tmp_path):
    run = write_run(tmp_path / "a")
    before = (run / "config.toml").read_text()
    done = typed(["sqsgd", "report", run, "--out", run / "config.toml"])
    assert done.code == 2
    assert "must end in .html" in done.error
    assert (run / "config.toml").read_text() == before


@pytest.mark.parametrize("missing", [False, True])
def test_a_run_finishes_without_plotly(tmp_path, monkeypatch, capsys, missing):
    run, out = write_run(tmp_path / "a"), tmp_path / "report.html"
    if missing:
        for name in [name for name in sys.modules if name.startswith(("sqsgd.report", "plotly"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "plotly", None)
    assert try_write_report([run], out) == (None if missing else out)
    assert out.exists() is not missing
    assert ("is not installed (pip install 'sqsgd[report]')" in capsys.readouterr().err) is missing
