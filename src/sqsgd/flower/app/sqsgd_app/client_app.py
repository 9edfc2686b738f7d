"""The node's side."""

from sqsgd.flower.client_app import app

__all__ = ["app"]
