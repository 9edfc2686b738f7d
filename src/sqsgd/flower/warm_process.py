"""A process beside the node that has imported everything, and forks for each message.

Nearly all that a message costs a node is importing torch, Flower and the kernels. ``bin/flwr-clientapp``
hands its arguments to this process (``hand_over.py``), and a new child of it runs the same guard as a process
that Flower starts. Without this process (it is starting, was killed, or cannot fork safely), messages take
the cold path.

Guarantees
----------
* No state of one app reaches another: the parent runs no app and reads no message, it only accepts
  connections and forks; each child handles one message and exits.
  tests/flower/test_warm_process.py::test_nothing_of_one_message_reaches_the_next
* Private randomness is fresh in each child, and so are the generators of ``random`` and ``numpy``.
  tests/flower/test_warm_process.py::test_children_draw_different_noise
* It forks only while it has a single thread: a lock that another thread holds would never be released.
  tests/flower/test_warm_process.py::test_a_process_with_threads_does_not_fork
* It ends with its SuperNode, however that ends.
  tests/flower/test_warm_process.py::test_it_ends_with_its_parent
* Only the node's user can hand messages over.
  tests/flower/test_warm_process.py::test_only_its_owner_reaches_it
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from sqsgd.flower import hand_over
from sqsgd.flower.internals import INTERNALS

SOCKET, HAND_OVER = "SQSGD_WARM_SOCKET", "SQSGD_HAND_OVER"
"""Environment variables of ``bin/flwr-clientapp``: where this process listens, and what hands over to it."""
NAME = "warm.socket"
PRELOADED = ("sqsgd.flower.guard", "sqsgd.flower.wrapping", "sqsgd.flower.ready_app")
_MOST_BYTES = 1 << 16
_MOST_WAIT = 600.0


class NotSafe(RuntimeError):
    """Forking now could copy a lock that is held."""


def wait_for_message(listener: socket.socket, parent: int) -> list[str]:
    """Fork for each connection. Returns in each child, with the arguments of its message.

    ``parent``: a descriptor of which another process holds the other end; this one exits when that has ended.
    """
    while True:
        ready, _, _ = select.select([listener.fileno(), parent], [], [], 1.0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if parent in ready:
            sys.exit(0)
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        with connection:
            check_single_thread()
            if os.fork() == 0:
                listener.close()
                return _begin(connection)


def check_single_thread() -> None:
    """Raise NotSafe if this process has more than one thread, Python's own or a library's."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads != 1:
        raise NotSafe(f"{threads} threads run")


def _begin(connection: socket.socket) -> list[str]:
    """In a child: its message's arguments, and the streams and generators of a new process."""
    text, streams = b"", list[int]()
    connection.settimeout(10.0)
    while not text.endswith(b"\n"):
        part, passed, _, _ = socket.recv_fds(connection, _MOST_BYTES, 2)
        text, streams = text + part, streams + passed
        if not part or len(text) > _MOST_BYTES:
            sys.exit(1)
    arguments = [str(argument) for argument in json.loads(text)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, *streams)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # from the operating system; Python's own generator renews itself
    connection.settimeout(60.0)
    connection.sendall(hand_over.TAKEN)
    if connection.recv(1) != hand_over.YOURS:  # it has lost patience, and started a process of its own
        sys.exit(1)
    return arguments


def preload() -> None:
    """Import what messages need, and load the kernels; run nothing that starts threads."""
    flowers = {name.partition(":")[0] for name, about in INTERNALS.items() if about.user == "guard"}
    for name in (*sorted(flowers), *PRELOADED):
        with contextlib.suppress(ImportError):  # a node without torch has apps without torch
            importlib.import_module(name)
    import numpy as np

    from sqsgd.randomness import secure_rng
    from sqsgd.schemes import make_scheme
    from sqsgd.task import Task

    task = Task(round=0, client=0, seed=0, dim=1000, bound=1.0)
    scheme = make_scheme("sqsgd", dim=task.dim, epsilon=200.0, bytes=128)
    scheme.encode(np.zeros(task.dim, np.float32), task, secure_rng())
    # OpenBLAS, which started threads when it was loaded, ends them before a fork until it needs them again.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()  # so that collections in children do not copy these pages


def listen(path: Path) -> socket.socket:
    """A socket that only this user reaches, in place of one that was left."""
    before, umask = Path.cwd(), os.umask(0o177)
    try:
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path.name)
        listener.listen()
    finally:
        os.umask(umask)
        os.chdir(before)
    return listener


def keep(folder: Path) -> None:
    """Start the process beside this one, again whenever it has ended; tell ``bin/flwr-clientapp`` of it."""
    os.environ[SOCKET], os.environ[HAND_OVER] = str(folder / NAME), hand_over.__file__

    def watch() -> None:
        wait = 1.0
        while True:
            started = time.monotonic()
            with subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "sqsgd.flower.warm_process", str(folder / NAME)], stdin=subprocess.PIPE
            ) as process:
                process.wait()
            wait = 1.0 if time.monotonic() - started > 60.0 else min(2 * wait, _MOST_WAIT)
            time.sleep(wait)

    threading.Thread(target=watch, name="warm", daemon=True).start()


def end(code: object) -> NoReturn:
    """End a child as Python does, but without taking apart what it shares with its parent: that copies it."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Wait for messages; each child runs the guard."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    preload()
    check_single_thread()
    sys.argv[1:] = wait_for_message(listen(Path(sys.argv[1])), sys.stdin.fileno())
    from sqsgd.flower import guard

    try:
        guard.main()
    except SystemExit as ended:
        end(ended.code)
    end(0)


if __name__ == "__main__":
    main()
