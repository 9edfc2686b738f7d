"""Waiting for nodes and for their answers, with deadlines of our own.

A SuperLink that is being started again breaks connections; Flower tries most of them anew, but not those that
broke in the middle of a TLS handshake. Such a break is waited out until the deadline, and raised after it.

A node may announce an answer and never send it. Flower's grid would wait for its parts, two hours at the
most, and for nothing else meanwhile. Here an answer that takes long is fetched in a thread of its own, and no
longer than the round lasts; what is fetched is limited too (parts.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from sqsgd.codec import MalformedReport
from sqsgd.flower.answers import Answer
from sqsgd.flower.parts import MOST_BYTES, Limits, limited

_LOG = logging.getLogger("flwr")
POLL_SECONDS = 0.2  # Flower's own grid looks every three seconds
_BROKEN = (httpx.TransportError, OSError)
_AT_ONCE = 0.5  # seconds after which the others are not kept waiting for one answer
_LAST_LOOK = 0.05  # likewise when the round's time is over


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


def exchange(
    grid: Grid, messages: Sequence[Message], seconds: float, report_bytes: int = 0
) -> Iterable[Answer]:
    """Send the messages and yield each answer as it comes, until all are there or the time is over.

    One message at a time: a grid reads what nodes wrote, and raises for all that it was asked for where one
    cannot be read. What came for a message is also laid to the node that it was sent to, whatever it says.
    """
    if not messages:
        return
    pushed = {name for name in grid.push_messages(messages) if name}  # none: it could not be sent
    limits = Limits(deadline=time.monotonic() + seconds, most_bytes=MOST_BYTES + 2 * report_bytes)
    waiting = {}
    for message in messages:
        name, node = message.metadata.message_id, message.metadata.dst_node_id
        if name in pushed:
            waiting[name] = node
        else:
            problem = "was not asked: the SuperLink took no message for it; the node may have left"
            yield Answer(node=node, asked=name, reply=None, problem=problem)
    fetches: dict[str, Future[Answer | None]] = {}
    while waiting:
        before = len(waiting)
        try:
            yield from _answered(grid, waiting, fetches, limits)
        except _BROKEN as error:
            if len(waiting) < len(pushed) and time.monotonic() > limits.deadline:
                return  # the round has answers, and may end with them
            _wait_out(error, limits.deadline)
            continue
        if not waiting or time.monotonic() > limits.deadline:
            return
        if len(waiting) == before:
            time.sleep(POLL_SECONDS)


def _answered(
    grid: Grid, waiting: dict[str, int], fetches: dict[str, Future[Answer | None]], limits: Limits
) -> Iterator[Answer]:
    """What has come so far; it is taken out of ``waiting``, which has each message's node.

    ``fetches`` keeps what takes long from one look to the next. Raises where the SuperLink was not reached
    for any message: one alone that breaks is not the way there.
    """
    broken, reached = None, False
    for name, node in list(waiting.items()):
        if name not in fetches:
            fetches[name] = _in_a_thread(_pull, grid, name, node, limits)
            wait([fetches[name]], _AT_ONCE if time.monotonic() < limits.deadline else _LAST_LOOK)
        if not fetches[name].done():
            continue
        try:
            answer = fetches.pop(name).result()
        except _BROKEN as error:
            broken = error
            continue
        reached = True
        if answer is not None:
            del waiting[name]
            yield answer
    if broken is not None and not reached:
        raise broken


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


def _wait_out(error: Exception, deadline: float) -> None:
    """Leave the SuperLink time to come back; raises the error where there is none left."""
    if time.monotonic() > deadline:
        raise error
    _LOG.warning("sqsgd: the SuperLink cannot be reached (%s): trying again", type(error).__name__)
    time.sleep(POLL_SECONDS)


def _pull(grid: Grid, name: str, node: int, limits: Limits) -> Answer | None:
    """What a node answered; None: nothing yet."""
    try:
        with limited(limits):
            found = list(grid.pull_messages([name]))
        if not found:
            return None
        fitting = [reply for reply in found if reply.metadata.reply_to_message_id == name]
        return Answer(node=node, asked=name, reply=(fitting or found)[0])
    except _BROKEN:
        raise  # the way to the SuperLink, not what a node wrote
    except MalformedReport as error:
        problem = str(error)
    except httpx.HTTPStatusError as error:
        problem = f"unreadable (the SuperLink answers {error.response.status_code} where it is asked for it)"
    except Exception as error:
        problem = f"unreadable ({type(error).__name__})"
    return Answer(node=node, asked=name, reply=None, problem=problem)
