"""`sqsgd report`, and the page that a finished run gets; also if the disk is full."""

import json
import resource
import signal

import pytest
from folders import write_run
from typed import typed

from sqsgd.cli._failures import Ended
from sqsgd.cli.report import final_page


def test_a_page_and_its_files(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"runs/{seed}", seed=seed)
    (tmp_path / "runs/b").mkdir()
    (tmp_path / "runs/b/error.txt").write_text("out of memory\n")
    out = tmp_path / "page.html"
    folders = [f"--{kind}={tmp_path / kind}" for kind in ("csv", "pdf", "svg")]
    done = typed(["sqsgd", "report", tmp_path / "runs", "--out", out, *folders, "--json"])
    assert done.code == 0
    page, *files = json.loads(done.out)
    assert page == str(out)
    assert "<title>" in out.read_text()[:2000]
    assert sorted(files) == sorted(
        str(path) for kind in ("csv", "pdf", "svg") for path in (tmp_path / kind).iterdir()
    )
    assert len(files) == 3 + 7 + 7
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
    for option, told in (("--out", "must end in .html"), ("--svg", "is a file; name a folder")):
        done = typed(["sqsgd", "report", run, option, run / "config.toml"])
        assert done.code == 2
        assert told in done.error
    assert (run / "config.toml").read_text() == before


def test_a_full_disk_is_named_with_its_file_and_the_remedy(tmp_path):
    """No file may become longer than some kilobytes here."""
    run = write_run(tmp_path / "a", rounds=4)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
    try:
        with pytest.raises(Ended) as ended:
            final_page(run, tmp_path / "page.html", "A title")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, before)
    assert ended.value.status == 1
    told = ended.value.reason
    assert told.startswith(f"{tmp_path / 'page.html'}: File too large; free some space")
    assert f"sqsgd report {run} --out {tmp_path / 'page.html'} --title 'A title'" in told
    assert not list(tmp_path.glob("page*"))  # nothing half-written
