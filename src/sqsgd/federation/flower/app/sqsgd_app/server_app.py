"""The server's side."""

from sqsgd.federation.flower.ready_app import server_app as app

__all__ = ["app"]
