"""Waiting for nodes and for their answers, with deadlines of our own.

A SuperLink that is being started again breaks connections; Flower tries most of them anew, but not those that
broke in the middle of a TLS handshake. Such a break is waited out until the deadline, and raised after it.

A node may announce an answer and never send it. Flower's grid would wait for its parts, two hours at the
most, and for nothing else meanwhile. Here an answer that takes long is fetched in a thread of its own, and no
longer than the round lasts.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from sqsgd.flower.answers import Answer
from sqsgd.randomness import EVERYONE, PublicStream

_GRID: Any = importlib.import_module("flwr.superlink.grid.http_grid")
_LOG = logging.getLogger("flwr")
POLL_SECONDS = 0.2  # Flower's own grid looks every three seconds
_BROKEN = (httpx.TransportError, OSError)
_AT_ONCE = 0.5  # seconds after which the others are not kept waiting for one answer


class TooFewNodes(RuntimeError):
    """Not enough nodes were connected before the deadline."""


def wait_for_nodes(grid: Grid, least: int, seconds: float, but: Collection[int] = ()) -> list[int]:
    """The connected nodes, sorted, once there are enough; raises TooFewNodes at the deadline.

    ``but``: nodes that do not count.
    """
    deadline = time.monotonic() + seconds
    while True:
        nodes: list[int] = []
        try:
            nodes = sorted(node for node in grid.get_node_ids() if node not in but)
        except _BROKEN as error:
            _wait_out(error, deadline)
        if len(nodes) >= least:
            return nodes
        if time.monotonic() > deadline:
            raise TooFewNodes(
                f"{len(nodes)} nodes{' that were not asked yet' if but else ''} are connected, {least} are "
                f"needed, and wait-timeout = {seconds:g} seconds are over: start more nodes, ask for fewer, "
                "or wait longer"
            )
        time.sleep(POLL_SECONDS)


def drawn(nodes: Sequence[int], size: int, seed: int, round: int) -> list[int]:
    """A round's nodes: ``size`` of them by public randomness, or all where there are no more."""
    if size >= len(nodes):
        return list(nodes)
    stream = PublicStream(seed=seed, round=round, client=EVERYONE, purpose="cohort")
    return [nodes[index] for index in stream.subset(len(nodes), size)]


def exchange(grid: Grid, messages: Sequence[Message], seconds: float) -> Iterable[Answer]:
    """Send the messages and yield each answer as it comes, until all are there or the time is over.

    One message at a time: a grid reads what nodes wrote, and raises for all that it was asked for where one
    cannot be read. What came for a message is also laid to the node that it was sent to, whatever it says.
    """
    if not messages:
        return
    deadline = time.monotonic() + seconds
    pushed = {name for name in grid.push_messages(messages) if name}  # none: it could not be sent
    waiting = {
        message.metadata.message_id: message.metadata.dst_node_id
        for message in messages
        if message.metadata.message_id in pushed
    }
    with _parts_awaited_until(deadline):
        fetches: dict[str, Future[Answer | None]] = {}
        while waiting:
            before = len(waiting)
            try:
                yield from _answered(grid, waiting, fetches)
            except _BROKEN as error:
                _wait_out(error, deadline)
                continue
            if not waiting or time.monotonic() > deadline:
                return
            if len(waiting) == before:
                time.sleep(POLL_SECONDS)


def _answered(
    grid: Grid, waiting: dict[str, int], fetches: dict[str, Future[Answer | None]]
) -> Iterator[Answer]:
    """What has come so far; it is taken out of ``waiting``, which has each message's node.

    ``fetches`` keeps what takes long from one look to the next.
    """
    for name, node in list(waiting.items()):
        if name not in fetches:
            fetches[name] = _in_a_thread(_pull, grid, name, node)
            wait([fetches[name]], _AT_ONCE)
        if not fetches[name].done():
            continue
        answer = fetches.pop(name).result()
        if answer is not None:
            del waiting[name]
            yield answer


def _in_a_thread(work: Callable[..., Answer | None], *arguments: Any) -> Future[Answer | None]:
    """The thread is a daemon: unlike a pool's, it keeps no process from its end."""
    future: Future[Answer | None] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@contextlib.contextmanager
def _parts_awaited_until(deadline: float) -> Iterator[None]:
    """Flower's grid has no setting for how long it waits for an answer's parts: its function is replaced."""
    original = _GRID.pull_objects

    def pull_objects(*arguments: Any, **options: Any) -> dict[str, bytes]:
        left = max(0.0, deadline - time.monotonic())
        found: dict[str, bytes] = original(*arguments, **{"backoff_cap": 1.0, **options, "max_time": left})
        return found

    _GRID.pull_objects = pull_objects
    try:
        yield
    finally:
        _GRID.pull_objects = original


def _wait_out(error: Exception, deadline: float) -> None:
    """Leave the SuperLink time to come back; raises the error where there is none left."""
    if time.monotonic() > deadline:
        raise error
    _LOG.warning("sqsgd: the SuperLink cannot be reached (%s): trying again", type(error).__name__)
    time.sleep(POLL_SECONDS)


def _pull(grid: Grid, name: str, node: int) -> Answer | None:
    """What a node answered; None: nothing yet."""
    try:
        found = list(grid.pull_messages([name]))
        if not found:
            return None
        fitting = [reply for reply in found if reply.metadata.reply_to_message_id == name]
        return Answer(node=node, asked=name, reply=(fitting or found)[0])
    except (httpx.HTTPError, OSError):
        raise  # the way to the SuperLink, not what a node wrote
    except Exception as error:
        return Answer(node=node, asked=name, reply=None, problem=type(error).__name__)
