"""The node's side."""

from sqsgd.flower.ready_client import app

__all__ = ["app"]
