"""sqsgd on Flower: ``SqsgdMod`` at the nodes, ``SqsgdStrategy`` at the server; docs/flower.md."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsgd.federation.flower.mod import ClientApp, SqsgdMod, correct_report, record_report
    from sqsgd.federation.flower.strategy import SqsgdStrategy
    from sqsgd.federation.node.answer import Simulation
    from sqsgd.federation.node.server import FederationSettings

__all__ = [
    "ClientApp", "FederationSettings", "Simulation", "SqsgdMod", "SqsgdStrategy", "app_folder",
    "correct_report", "record_report",
]  # fmt: skip
_HOMES = {
    "ClientApp": "flower.mod",
    "FederationSettings": "node.server",
    "Simulation": "node.answer",
    "SqsgdMod": "flower.mod",
    "SqsgdStrategy": "flower.strategy",
    "correct_report": "flower.mod",
    "record_report": "flower.mod",
}


def app_folder() -> Path:
    """Return the path of an example app, which can be passed to ``flwr run``."""
    return Path(__file__).parent / "app"


def __getattr__(name: str) -> Any:
    # app_folder works without flwr, and a node does not load the strategy.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"sqsgd.federation.{_HOMES[name]}"), name)
