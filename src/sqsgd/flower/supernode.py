"""Flower's ``flower-supernode``, but it reads no bundle that the node's owner does not allow.

A SuperNode opens each bundle that it receives, for the app's settings, before any process for the app is
started and the guard could refuse it. A node made by ``sqsgd deploy init`` runs this module instead.

Guarantees
----------
* A bundle that is not allowed, or would unpack to more than the guard's limits, is not opened.
  tests/flower/test_supernode.py::test_a_bomb_is_not_opened
* A report that was paid for is sent again if its connection is cut.
  tests/flower/test_supernode.py::test_a_request_whose_connection_is_cut_is_repeated
"""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqsgd.flower import guard, warm_process
from sqsgd.flower.internals import internal, internal_module

WARM = "warm-process"
"""The owner's setting: keep a process that has imported everything, so that messages take less time."""


def read_if_allowed(read: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's function for a bundle's settings, but a mark for a bundle that the guard will refuse."""

    def settings(content: bytes, run: Any) -> Any:
        try:
            guard.check(content)
        except guard.AppRefused:
            return {guard.UNREAD: True}
        return read(content, run)

    return settings


def repeating(make: Callable[[], Any]) -> Callable[[], Any]:
    """Flower's function for what repeats failed requests, but cut connections of TLS count as failed.

    Flower takes every error of TLS for a wrong certificate, and gives up: it would lose the report.
    """

    def made() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not _is_cut(error) and gives_up(error)
        return invoker

    return made


def _is_cut(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLEOFError):
        error = error.__cause__ or error.__context__
    return error is not None


class Pauses:
    """In place of ``time`` in Flower's loop, which asks the server every three seconds, and looks for the
    app's answer every half second: soon after a message it asks more often, because another may follow.
    """

    FIRST, SHORT = 0.25, 0.1

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep, self._next = sleep, self.FIRST

    def sleep(self, seconds: float) -> None:
        """At most so many seconds."""
        if seconds < 1:  # an app is at work
            self._next = self.FIRST
            self._sleep(self.SHORT)
        else:
            self._sleep(min(self._next, seconds))
            self._next = min(2 * self._next, seconds)


def owner_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """The node's settings among the arguments, as Flower reads them."""
    given = [arguments[at + 1] for at, word in enumerate(arguments[:-1]) if word == "--node-config"]
    return dict(internal("flwr.common.config:parse_config_args")(given or None))


def main() -> None:
    """Run Flower's own command, guarded."""
    guard.check_version()
    receiving = internal_module("flwr.supernode.start_client_internal:get_fused_config_from_fab")
    receiving.get_fused_config_from_fab = read_if_allowed(receiving.get_fused_config_from_fab)
    receiving.time = Pauses()
    sending = internal_module("flwr.supernode.fleet_http_connection:make_simple_http_retry_invoker")
    sending.make_simple_http_retry_invoker = repeating(sending.make_simple_http_retry_invoker)
    warm = owner_settings(sys.argv[1:]).get(WARM, True)
    if not isinstance(warm, bool):
        sys.exit(f"node.conf: {WARM} = {warm!r} must be true or false")
    home = os.environ.get("FLWR_HOME")
    if warm and home and sys.platform == "linux":  # elsewhere, forked processes may not use system libraries
        warm_process.keep(Path(home))
    sys.argv[0] = "flower-supernode"  # Flower reads its own name from it
    internal("flwr.supernode.cli:flower_supernode")()


if __name__ == "__main__":
    main()
