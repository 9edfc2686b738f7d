"""The warm process: each message in a new child that shares nothing that matters, and no orphan."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
from sqsgd.flower.internals import OLDEST_DEPLOYED, untested

if untested(OLDEST_DEPLOYED):
    pytest.skip(f"sqsgd deploy is not for {untested(OLDEST_DEPLOYED)}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("other systems start a new process for each message", allow_module_level=True)

from live import wait_until

from sqsgd.flower import hand_over, warm_process

START = """\
import os, random, sys, threading, time
from pathlib import Path
import numpy as np
from sqsgd.flower import warm_process
from sqsgd.randomness import private, secure_rng
"""
WAIT = "arguments = warm_process.wait_for_message(warm_process.listen(Path(sys.argv[1])), 0)\n"


@contextlib.contextmanager
def waiting(path, before, child):
    """A process that waits for messages after some code, and whose children run other code."""
    process = subprocess.Popen(
        [sys.executable, "-c", START + before + WAIT + child, path],
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # NumPy's would run already
    )
    try:
        wait_until(lambda: path.exists() or process.poll() is not None, 60, "it listens")
        yield process
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def asking(path, *arguments):
    """The command that hands a message over."""
    return [sys.executable, "-IS", hand_over.__file__, str(path), *arguments]


def said(path, *arguments):
    """What the child of a message writes to the streams that come with it."""
    done = subprocess.run(asking(path, *arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_one_message_reaches_the_next(tmp_path):
    change = (
        "found = 'left' in os.environ, 'left' in sys.modules, hasattr(np, 'left'), os.getcwd() == '/'\n"
        "os.environ['left'] = '1'; sys.modules['left'] = np.left = object(); os.chdir('/')\n"
        "print(os.getppid(), os.getpid(), *found, *arguments, sys.stdin.read() == '')\n"
    )
    with waiting(tmp_path / "socket", "", change) as process:
        first, second = (said(tmp_path / "socket", "--token", text).split() for text in ("a b", "c"))
    assert first[0] == second[0] == str(process.pid)
    assert first[1] != second[1]
    assert first[2:] == ["False"] * 4 + ["--token", "a", "b", "True"]
    assert second[2:] == ["False"] * 4 + ["--token", "c", "True"]


MADE = "rng, direct = secure_rng(), secure_rng('os'); rng.word(); rng.take(16); private.idle_rng().word()\n"
DRAW = (
    "print(rng.take(16).tobytes().hex(), rng.word(), direct.word(), private.idle_rng().word(), "
    "random.random(), np.random.random())\n"
)
BROKEN = "private.Rng._after_fork = private.Rng._check_process = lambda self: None\n"


def draws(path, before):
    with waiting(path, before + MADE, DRAW):
        return list(zip(*(said(path).split() for _ in range(3)), strict=True))


def test_children_draw_different_noise(tmp_path):
    """Also from generators that were made, and whose buffers were filled, before the fork."""
    for drawn in draws(tmp_path / "socket", ""):
        assert len(set(drawn)) == 3


def test_generators_that_are_not_renewed_would_repeat_it(tmp_path):
    """So that the test above is seen to fail."""
    noise, words, direct, idle, python, numpy = draws(
        tmp_path / "socket", BROKEN + "np.random.seed = lambda: None\n"
    )
    assert len(set(noise)) == len(set(words)) == len(set(idle)) == len(set(numpy)) == 1
    assert len(set(python)) == 3  # Python renews its own
    assert len(direct) == 3


@pytest.mark.parametrize("library", [False, True])
def test_a_process_with_threads_does_not_fork(tmp_path, library):
    """Threads of a library count, which Python does not know."""
    thread = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    if library:
        thread = (
            "import ctypes\nc = ctypes.CDLL(None)\n"
            "c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, c.pause, None)\n"
            "assert threading.active_count() == 1\n"
        )
    with waiting(tmp_path / "socket", thread, "print('forked')") as process:
        assert not is_taken(tmp_path / "socket")
        assert process.wait(60) != 0


def is_taken(path, *arguments):
    return subprocess.run(asking(path, *arguments), stdout=subprocess.DEVNULL).returncode == 0


def test_it_ends_with_its_parent(tmp_path):
    """Started, restarted after a kill, and gone with the process that keeps it, however that ends."""
    path = tmp_path / warm_process.NAME
    code = f"{START}warm_process.keep(Path(sys.argv[1]))\ntime.sleep(600)\n"
    keeper = subprocess.Popen([sys.executable, "-c", code, tmp_path], start_new_session=True)
    try:
        wait_until(path.exists, 200, "it listens")
        first = child_of(keeper.pid)
        assert "usage: flwr-clientapp" in said(path, "--help")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not alive(first), 60, "it is gone")
        assert not is_taken(path)  # the message takes the cold path
        wait_until(lambda: is_taken(path, "--help"), 200, "another one listens")
        second = child_of(keeper.pid)
        keeper.kill()
        keeper.wait()
        wait_until(lambda: not alive(second), 60, "it has ended")
        assert not is_taken(path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()


def child_of(pid):
    """The only child of a process, whichever of its threads has started it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    (found,) = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_only_its_owner_reaches_it(tmp_path):
    """Even where the folder's path is too long for a socket, and something was left in its place."""
    place = tmp_path / ("a" * 100) / ("b" * 100)
    place.mkdir(parents=True)
    here = Path.cwd()
    (place / "socket").write_text("left")
    with warm_process.listen(place / "socket"):
        assert (place / "socket").stat().st_mode & 0o077 == 0
        assert Path.cwd() == here


def test_what_a_message_needs_starts_no_thread():
    """Flower, torch and the kernels, imported in a process of their own."""
    code = f"{START}warm_process.preload(); warm_process.check_single_thread(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert {"grpc", "numba", "flwr.supernode.runtime.run_clientapp"} <= set(done.stdout.split())


def test_a_client_that_says_nothing_keeps_nobody_waiting(tmp_path):
    with waiting(tmp_path / "socket", "", "print(*arguments)\n"):
        here = Path.cwd()
        try:
            os.chdir(tmp_path)
            silent = socket.socket(socket.AF_UNIX)
            silent.connect("socket")
        finally:
            os.chdir(here)
        with silent:
            assert said(tmp_path / "socket", "next") == "next\n"


def test_a_message_that_its_caller_took_back_is_left_to_it(tmp_path):
    """The caller has started a process of its own: two must not answer one message."""
    proof = tmp_path / "ran"
    with waiting(tmp_path / "socket", "", f"Path({str(proof)!r}).touch()\n") as process:
        here = Path.cwd()
        try:
            os.chdir(tmp_path)
            with socket.socket(socket.AF_UNIX) as impatient:
                impatient.connect("socket")
                socket.send_fds(impatient, [b'["--help"]\n'], [1, 2])
                assert impatient.recv(1) == hand_over.TAKEN
        finally:
            os.chdir(here)
        tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: not tasks.read_text().split(), 60, "the child has ended")
        assert not proof.exists()
        said(tmp_path / "socket")
        wait_until(proof.exists, 60, "the next message is answered")


def test_a_child_ends_as_a_process_does():
    """Threads are waited for, exit functions called, streams flushed."""
    code = (
        "import atexit, sys, threading, time\nfrom sqsgd.flower import warm_process\n"
        "atexit.register(print, 'exit function')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "warm_process.end({})\n"
    )
    for given, code_seen in (("None", 0), ("3", 3), ("'text'", 1)):
        done = subprocess.run([sys.executable, "-c", code.format(given)], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (code_seen, "thread\nexit function\n"), done.stderr
