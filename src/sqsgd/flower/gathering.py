"""Waiting for nodes and for their answers, with deadlines of our own.

A SuperLink that is being started again breaks connections; Flower tries most of them anew, but not those that
broke in the middle of a TLS handshake. Such a break is waited out until the deadline, and raised after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from sqsgd.flower.answers import Answer
from sqsgd.randomness import EVERYONE, PublicStream

_LOG = logging.getLogger("flwr")
POLL_SECONDS = 0.2  # Flower's own grid looks every three seconds
_BROKEN = (httpx.TransportError, OSError)


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
    while waiting:
        before = len(waiting)
        try:
            yield from _answered(grid, waiting)
        except _BROKEN as error:
            _wait_out(error, deadline)
            continue
        if not waiting or time.monotonic() > deadline:
            return
        if len(waiting) == before:
            time.sleep(POLL_SECONDS)


def _answered(grid: Grid, waiting: dict[str, int]) -> Iterator[Answer]:
    """What has come so far; it is taken out of ``waiting``, which has each message's node."""
    for name, node in list(waiting.items()):
        answer = _pull(grid, name, node)
        if answer is not None:
            del waiting[name]
            yield answer


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
