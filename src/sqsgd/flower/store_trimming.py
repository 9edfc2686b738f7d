"""Removing from the SuperLink's store what a round left there.

The SuperLink keeps a message and its parts until its recipient confirms it or the run ends. Answers that are
rejected unread, and models for nodes that are away, would fill the server's disk in a long run.
"""

from __future__ import annotations

import contextlib

import httpx
from flwr.serverapp import Grid

from sqsgd.flower.internals import internal


def discard(grid: Grid, message: str) -> None:
    """Remove a message and its parts, except those that other messages share; no error if it is not there.

    Flower has no request for it other than that the recipient has received it. A grid without a connection,
    as in simulations, stores nothing on disk.
    """
    if not isinstance(grid, internal("flwr.superlink.grid.http_grid:HttpGrid")) or not message:
        return
    received = internal("flwr.proto.message_pb2:ConfirmMessageReceivedRequest")
    request = received(node=grid.node, run_id=grid.run.run_id, message_object_id=message)
    with contextlib.suppress(httpx.HTTPError, OSError):  # it then stays until the run ends
        grid._runtime_client.ConfirmMessageReceived(request)
