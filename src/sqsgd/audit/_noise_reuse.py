"""Draw from a generator in every setting a client may run in: fresh, reused, in threads and in forks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqsgd.randomness import Rng

_EACH = 2
_TIMEOUT = 60.0  # seconds for a child process


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What was drawn in all settings, in pieces that must never repeat."""

    pieces: list[bytes]
    settings: list[str]
    refused: list[str]
    """Settings in which the generator refused to work, which is safe."""


def draw_in_every_setting(noise: Callable[[], Rng], draw: Callable[[Rng, int], list[bytes]]) -> Drawn:
    """Draw with one generator twice, with fresh ones, in threads, and in forked processes.

    ``draw`` receives the number of the setting, which selects the client and the round.
    """
    shared = noise()
    pieces = draw(shared, 0) + draw(shared, 0)  # something for the children to repeat
    settings, refused = ["one client asked twice"], list[str]()
    for which in range(1, 4):
        pieces += draw(noise(), which)
    settings += ["clients and rounds"]
    pieces += _in_threads(lambda which: draw(shared, which))
    settings += ["threads"]
    for name, run in (("os.fork", _forked), ("multiprocessing", _multiprocessed)):
        if not hasattr(os, "fork"):
            continue
        answers = [run(partial(draw, shared, which)) for which in range(_EACH)]
        pieces += [piece for answer in answers for piece in answer or []]
        (refused if None in answers else settings).append(name)
    return Drawn(pieces=pieces + draw(shared, 0), settings=settings, refused=refused)


def _in_threads(draw: Callable[[int], list[bytes]]) -> list[bytes]:
    found: list[bytes] = []
    barrier = threading.Barrier(3)

    def work(which: int) -> None:
        barrier.wait(_TIMEOUT)
        found.extend(draw(which))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _joined(pieces: Sequence[bytes]) -> bytes:
    return b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces)


def _split(joined: bytes) -> list[bytes]:
    pieces, start = [], 0
    while start < len(joined):
        size = int.from_bytes(joined[start : start + 4], "little")
        pieces.append(joined[start + 4 : start + 4 + size])
        start += 4 + size
    return pieces


def _forked(draw: Callable[[], list[bytes]]) -> list[bytes] | None:
    """Draw in a child of os.fork; None if the generator refuses."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns about other threads; the child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):  # the child must not return into the parent's code
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_joined(draw()))
            status = 0
        os._exit(status)
    os.close(writing)
    parts: list[bytes] = []
    with os.fdopen(reading, "rb") as pipe:
        while select.select([pipe], [], [], _TIMEOUT)[0]:
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                break
            parts.append(part)
        else:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return _split(b"".join(parts)) if os.waitstatus_to_exitcode(status) == 0 else None


def _answering(draw: Callable[[], list[bytes]], pipe: Any) -> None:
    try:
        answer = _joined(draw())
    except Exception:  # the parent only needs to know that it failed
        answer = b""
    pipe.send_bytes(answer)


def _multiprocessed(draw: Callable[[], list[bytes]]) -> list[bytes] | None:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_answering, args=(draw, sending))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    answer = receiving.recv_bytes() if receiving.poll(_TIMEOUT) else b""
    if not answer:
        child.kill()
    child.join()
    return _split(answer) or None
