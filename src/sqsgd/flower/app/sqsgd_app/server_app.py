"""The server's side."""

from sqsgd.flower.ready_server import app

__all__ = ["app"]
