"""Processes are known by more than their number, and ended with all that they started."""

import os
import secrets
import subprocess
import sys

import pytest
from live import wait_until

from sqsgd.deploy import processes
from sqsgd.deploy.processes import Process

WAIT = "import time; print('ready', flush=True); time.sleep(300)"
FAMILY = f"import subprocess; subprocess.Popen(['sleep', '300']); {WAIT}"
LEAVER = f"import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True); {WAIT}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs /proc")  # noqa: PTH110


def started(tmp_path, code, mark, count=2):
    """A child that is ready, and ``count`` processes, itself included, whose environments can be read."""
    child = processes.start([sys.executable, "-c", code], tmp_path / "log", dict(os.environ), mark)
    wait_until(lambda: "ready" in (tmp_path / "log").read_text(), 60, "the child is ready")
    wait_until(lambda: len(processes.marked(mark)) == count, 60, f"{count} processes carry the mark")
    return child, Process(pid=child.pid, started=processes.start_time(child.pid))


@pytest.mark.parametrize(("code", "killed"), [(FAMILY, 0), (LEAVER, 0), (STUBBORN, 1)])
def test_nothing_is_left(tmp_path, code, killed):
    mark = secrets.token_hex(16)  # another run of the tests has another
    child, process = started(tmp_path, code, mark, count=2 - killed)
    assert process.alive
    assert child.pid in processes.marked(mark)
    assert len(processes.end([[process]], mark, patience=0.5 if killed else 60.0)) == killed
    assert processes.marked(mark) == []
    assert not process.alive
    child.wait()


def test_a_stage_has_ended_before_the_next_is_asked(tmp_path):
    """The first takes its time to sign off; the second must still be there to hear it."""
    mark, said = secrets.token_hex(16), tmp_path / "said"
    told = f"print(sys.argv[1], file=open({str(said)!r}, 'a'))"
    code = (
        "import signal, sys, time\n"
        f"def leave(*_):\n    time.sleep(float(sys.argv[2]))\n    {told}\n    sys.exit()\n"
        f"signal.signal(signal.SIGTERM, leave)\n{WAIT}"
    )
    pairs = []
    for name, seconds in (("server", "0"), ("node", "1")):
        log = tmp_path / f"{name}.log"
        child = processes.start([sys.executable, "-c", code, name, seconds], log, dict(os.environ), mark)
        wait_until(lambda log=log: "ready" in log.read_text(), 60, "it is ready")
        pairs.append((child, Process(pid=child.pid, started=processes.start_time(child.pid))))
    (server, serving), (node, asking) = pairs
    assert processes.end([[asking], [serving]], mark, patience=60.0) == []
    assert said.read_text().split() == ["node", "server"]
    for child in (server, node):
        child.wait()


def test_what_an_orphan_left_is_found_by_its_mark(tmp_path):
    mark = secrets.token_hex(16)  # another run of the tests has another
    child, _ = started(tmp_path, LEAVER, mark)
    child.kill()
    child.wait()
    assert len(processes.marked(mark)) == 1
    processes.end([], mark)
    assert processes.marked(mark) == []


def test_another_process_of_the_same_number_is_left_alone():
    other = subprocess.Popen([sys.executable, "-c", WAIT], start_new_session=True)
    try:
        impostor = Process(pid=other.pid, started="an hour ago")
        assert not impostor.alive
        assert processes.end([[impostor]], "test-nobody", patience=0.2) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_remains_are_not_alive():
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = Process(pid=child.pid, started=processes.start_time(child.pid) or "over")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert not process.alive
    child.wait()
    assert processes.start_time(child.pid) is None
