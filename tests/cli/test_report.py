"""`sqsgd report`, and the page that a finished run gets."""

import json
import shutil
from importlib import import_module
from unittest import mock

from folders import write_run
from typed import typed

report = import_module("sqsgd.cli.report")


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


def test_the_files_for_a_paper(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"runs/{seed}", seed=seed)
    folders = [f"--{kind}={tmp_path / kind}" for kind in ("csv", "latex", "pdf")]
    words = ["--label", "sqsgd=Ours", "--figure", "loss.title=How it learns", "--title", "Mine"]
    page = tmp_path / "page.html"
    done = typed(["sqsgd", "report", tmp_path / "runs", "--out", page, "--json", *folders, *words])
    assert (done.code, done.error) == (0, "")
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert {"csv/runs.csv", "csv/arms.csv", "latex/table.tex", "latex/loss.pdf", "pdf/loss.pdf"} < written
    assert all(path.startswith(b"%PDF") for path in map(reading, (tmp_path / "pdf").iterdir()))
    assert len(json.loads(done.out)) == 1 + 3 + 2 + 7 + 8
    assert "\nOurs,3," in (tmp_path / "csv/arms.csv").read_text()
    assert "Ours & 3 &" in (tmp_path / "latex/table.tex").read_text()
    assert "\\caption{Mine." in (tmp_path / "latex/table.tex").read_text()
    assert "How it learns" in (tmp_path / "latex/figures.tex").read_text()
    assert ">How it learns</h3>" in page.read_text()
    assert "--label sqsgd=Ours --figure &#x27;loss.title=How it learns&#x27;" in page.read_text()


def reading(path):
    return path.read_bytes()


def test_a_live_page_ends_with_the_runs(tmp_path, monkeypatch):
    """It refreshes until the run is finished, which the wait between two pages brings about here."""
    run, out, seen = write_run(tmp_path / "a", done=10), tmp_path / "page.html", []

    def wait(seconds):
        seen.append((seconds, out.read_text()))
        shutil.rmtree(run)
        write_run(run)

    monkeypatch.setattr(report.time, "sleep", wait)
    done = typed(["sqsgd", "report", run, "--out", out, "--live"])
    assert done.code == 0
    ((seconds, page),) = seen
    assert seconds == 5
    assert 'http-equiv="refresh" content="5"' in page
    assert "unfinished at round 10 of 40" in page
    assert 'http-equiv="refresh"' not in out.read_text()
    assert "until the runs have ended" in done.error


def test_ctrl_c_ends_a_live_page(tmp_path, monkeypatch):
    run, out = write_run(tmp_path / "a", done=10), tmp_path / "page.html"
    monkeypatch.setattr(report.time, "sleep", mock.Mock(side_effect=KeyboardInterrupt))
    done = typed(["sqsgd", "report", run, "--out", out, "--live"])
    assert done.code == 0
    assert "stopped: the runs are shown as they are now" in done.error
    assert 'http-equiv="refresh"' not in out.read_text()
