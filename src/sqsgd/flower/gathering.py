"""Waiting for nodes and for their answers, with deadlines of our own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

POLL_SECONDS = 0.2  # Flower's own grid looks every three seconds


class TooFewNodes(RuntimeError):
    """Not enough nodes were connected before the deadline."""


def wait_for_nodes(grid: Grid, least: int, seconds: float) -> list[int]:
    """The connected nodes, sorted, once there are enough; raises TooFewNodes at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= least:
            return nodes
        if time.monotonic() > deadline:
            raise TooFewNodes(
                f"{len(nodes)} nodes are connected, {least} are needed, and wait-timeout = {seconds:g} "
                "seconds are over: start more nodes, ask for fewer, or wait longer"
            )
        time.sleep(POLL_SECONDS)


def exchange(grid: Grid, messages: Sequence[Message], seconds: float) -> Iterable[Message]:
    """Send the messages and yield each answer as it comes, until all are there or the time is over."""
    if not messages:
        return
    deadline = time.monotonic() + seconds
    waiting = {name for name in grid.push_messages(messages) if name}  # none: it could not be sent
    while waiting:
        answers = list(grid.pull_messages(waiting))
        for answer in answers:
            waiting.discard(answer.metadata.reply_to_message_id)
            yield answer
        if not waiting or time.monotonic() > deadline:
            return
        if not answers:
            time.sleep(POLL_SECONDS)
