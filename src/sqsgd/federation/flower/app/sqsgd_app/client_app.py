"""The node's side."""

from sqsgd.federation.flower.ready_app import client_app as app

__all__ = ["app"]
