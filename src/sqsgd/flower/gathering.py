"""Waiting for nodes and for their answers, with our own deadlines.

A SuperLink that restarts breaks connections. Flower retries most of them, but not those that broke during a
TLS handshake; these are retried here until the deadline.

A node may announce an answer and never send it. Flower's grid would wait up to two hours for its parts, and
for nothing else meanwhile. Here a slow answer is fetched in a separate thread until the round ends. nginx in
front of the SuperLink limits the size of its parts (deploy/templates.py).
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

from sqsgd.flower.answers import Answer

_LOG = logging.getLogger("flwr")
POLL_SECONDS = 0.2  # Flower's own grid polls every three seconds
OUTLIVES = 60.0
"""Seconds that a message outlives its round: nodes' clocks may be ahead, and the last look may take long."""
_BROKEN = (httpx.TransportError, OSError)
_AT_ONCE = 0.5  # seconds to wait for one answer before the next is tried
_LAST_LOOK = 0.05  # the same after the deadline


class TooFewNodes(RuntimeError):
    """Not enough nodes were connected before the deadline."""


def wait_for_nodes(
    grid: Grid,
    least: int,
    seconds: float,
    but: Collection[int] = (),
    only: Collection[int] | None = None,
) -> list[int]:
    """The connected nodes, sorted, once there are enough; raises TooFewNodes at the deadline.

    ``but``: nodes that do not count; ``only``: those that do.
    """
    deadline = time.monotonic() + seconds
    while True:
        nodes: list[int] = []
        try:
            nodes = sorted(node for node in grid.get_node_ids() if node not in but)
            nodes = nodes if only is None else [node for node in nodes if node in only]
        except _BROKEN as error:
            _wait_out(error, deadline)
        if len(nodes) >= least:
            return nodes
        if time.monotonic() > deadline:
            raise TooFewNodes(
                f"{len(nodes)} nodes{' that were not asked yet' if but else ''} are connected, {least} are "
                f"needed, and wait-timeout = {seconds:g} seconds have passed: start more nodes, ask for "
                "fewer, or wait longer"
            )
        time.sleep(POLL_SECONDS)


def exchange(grid: Grid, messages: Sequence[Message], seconds: float) -> Iterable[Answer]:
    """Send the messages and yield each answer as it arrives, until all are there or the time is over.

    Answers are pulled one at a time: a grid that is asked for several raises for all of them if one cannot be
    read. An answer is attributed to the node that the message was sent to, whatever the answer says.

    After the time is over the SuperLink gives the messages to no node, and soon accepts no answers to them.
    """
    if not messages:
        return
    for message in messages:
        message.metadata.ttl = seconds + OUTLIVES
    pushed = {name for name in grid.push_messages(messages) if name}  # no id: it could not be sent
    deadline = time.monotonic() + seconds
    waiting = {}
    for message in messages:
        name, node = message.metadata.message_id, message.metadata.dst_node_id
        if name in pushed:
            waiting[name] = node
        else:
            problem = "was not asked: the SuperLink accepted no message for it; the node may have left"
            yield Answer(node=node, asked=name, reply=None, problem=problem, sent=False)
    fetches: dict[str, Future[Answer | None]] = {}
    while waiting:
        before = len(waiting)
        try:
            yield from _answered(grid, waiting, fetches, deadline)
        except _BROKEN as error:
            if len(waiting) < len(pushed) and time.monotonic() > deadline:
                return  # the round ends with the answers that it has
            _wait_out(error, deadline)
            continue
        if not waiting or time.monotonic() > deadline:
            return
        if len(waiting) == before:
            time.sleep(POLL_SECONDS)


def _answered(
    grid: Grid, waiting: dict[str, int], fetches: dict[str, Future[Answer | None]], deadline: float
) -> Iterator[Answer]:
    """The answers that have arrived; they are removed from ``waiting``, which maps messages to nodes.

    ``fetches`` keeps slow answers from one poll to the next. Raises if the SuperLink was not reached for any
    message: if only some fail, the connection is not at fault.
    """
    broken, reached = None, False
    for name, node in list(waiting.items()):
        if name not in fetches:
            fetches[name] = _in_a_thread(_pull, grid, name, node)
            wait([fetches[name]], _AT_ONCE if time.monotonic() < deadline else _LAST_LOOK)
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
    """Run the work in a daemon thread, which unlike a pool's does not keep the process alive."""
    future: Future[Answer | None] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # raised by ``result``
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _wait_out(error: Exception, deadline: float) -> None:
    """Give the SuperLink time to come back; raises the error after the deadline."""
    if time.monotonic() > deadline:
        raise error
    _LOG.warning("sqsgd: the SuperLink cannot be reached (%s): trying again", type(error).__name__)
    time.sleep(POLL_SECONDS)


def _pull(grid: Grid, name: str, node: int) -> Answer | None:
    """A node's answer; None: not yet there."""
    try:
        found = list(grid.pull_messages([name]))
        if not found:
            return None
        fitting = [reply for reply in found if reply.metadata.reply_to_message_id == name]
        return Answer(node=node, asked=name, reply=(fitting or found)[0])
    except _BROKEN:
        raise  # the connection to the SuperLink, not the node's answer
    except httpx.HTTPStatusError as error:
        problem = f"unreadable (the SuperLink responds {error.response.status_code} to the request for it)"
    except Exception as error:
        problem = f"unreadable ({type(error).__name__})"
    return Answer(node=node, asked=name, reply=None, problem=problem)
