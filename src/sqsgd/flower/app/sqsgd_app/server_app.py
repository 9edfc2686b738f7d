"""The server's side."""

from sqsgd.flower.server_app import app

__all__ = ["app"]
