"""The page at the end of runs, and live; also if the disk is full."""

import os
import resource
import signal
import subprocess
import sys

import pytest
from folders import write_run

from sqsgd.cli import _pages
from sqsgd.cli._failures import Ended
from sqsgd.cli._pages import final_page, live_page

REFRESHES = 'http-equiv="refresh" content="5"'


@pytest.fixture
def full(monkeypatch):
    """No file may become longer than some kilobytes, as on a disk that is full."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    signal.signal(signal.SIGXFSZ, ignored)


def test_the_page_of_finished_runs(tmp_path):
    run = write_run(tmp_path / "a")
    assert final_page(run, tmp_path / "page.html", "Mine") == tmp_path / "page.html"
    assert "<h1>Mine</h1>" in (tmp_path / "page.html").read_text()


def test_a_full_disk_is_named_with_its_file_and_the_remedy(tmp_path, full):
    run = write_run(tmp_path / "a", rounds=4)
    with pytest.raises(Ended) as ended:
        final_page(run, tmp_path / "page.html", "A title")
    assert ended.value.status == 1
    told = ended.value.reason
    assert told.startswith(f"{tmp_path / 'page.html'}: File too large; free some space")
    assert f"sqsgd report {run} --out {tmp_path / 'page.html'} --title 'A title'" in told
    assert not list(tmp_path.glob("page*"))  # nothing half-written


def test_report_on_a_full_disk_ends_with_1_and_the_file_name(tmp_path):
    run = write_run(tmp_path / "a")
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "sys.argv = ['sqsgd', 'report', *sys.argv[1:]]; from sqsgd.cli import main; main()"
    )
    command = [sys.executable, "-c", code, run, "--out", tmp_path / "page.html"]
    # The kernels' cache is written elsewhere, or not at all.
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 1
    remedy = "free some space, or write to another disk"
    assert done.stderr == f"sqsgd: {tmp_path / 'page.html'}: File too large; {remedy}\n"


def test_live_pages_refresh_and_the_last_does_not(tmp_path):
    run, out = write_run(tmp_path / "a", done=10), tmp_path / "page.html"
    with live_page(True, lambda: [run], out, "Mine") as update:
        first = out.read_text()
        assert REFRESHES in first
        assert "reloads itself every 5 seconds" in first
        out.unlink()
        update()  # too early for another
        assert not out.exists()
    assert REFRESHES not in out.read_text()


def test_an_error_leaves_a_page_that_does_not_refresh(tmp_path):
    run, out = write_run(tmp_path / "a", done=10), tmp_path / "page.html"

    def interrupted():
        with live_page(True, lambda: [run], out) as update:
            update()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert REFRESHES not in out.read_text()


def test_no_live_page_is_written_unless_it_is_wanted(tmp_path):
    run = write_run(tmp_path / "a", done=10)
    with live_page(False, lambda: [run], tmp_path / "page.html") as update:
        update()
    assert not (tmp_path / "page.html").exists()


def test_runs_go_on_if_the_live_page_cannot_be_written(tmp_path, full, capsys, monkeypatch):
    monkeypatch.setattr(_pages, "REFRESH", 0)
    run = write_run(tmp_path / "a", done=4)
    with live_page(True, lambda: [run], tmp_path / "page.html") as update:
        update()
        update()
    told = capsys.readouterr().err
    assert told.count("no live page: ") == 1
    assert "page.html: File too large" in told


def test_runs_that_do_not_exist_yet_are_awaited(tmp_path):
    with live_page(True, lambda: [tmp_path / "none"], tmp_path / "page.html") as update:
        update()
    assert not (tmp_path / "page.html").exists()


def test_a_page_is_written_as_soon_as_there_is_a_run(tmp_path):
    run, out = tmp_path / "a", tmp_path / "page.html"
    with live_page(True, lambda: [run], out) as update:
        update()
        assert not out.exists()
        write_run(run, done=0)
        update()  # before the next is due
        assert REFRESHES in out.read_text()
