"""The page at the end of runs, also if the disk is full."""

import os
import resource
import signal
import subprocess
import sys

import pytest
from folders import write_run

from sqsgd.cli._failures import Ended
from sqsgd.cli.train import final_page


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
