"""sqsgd on NVFlare: ``SqsgdFilter`` for clients and ``SqsgdAggregator`` for the server (docs/nvflare.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsgd.federation.node.records import sum_records
    from sqsgd.federation.nvflare.client import SqsgdFilter
    from sqsgd.federation.nvflare.server import SqsgdAggregator

__all__ = ["SqsgdAggregator", "SqsgdFilter", "sum_records"]
_HOMES = {"SqsgdFilter": "nvflare.client", "SqsgdAggregator": "nvflare.server", "sum_records": "node.records"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"sqsgd.federation.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise ImportError(f"{name} needs NVFlare: pip install 'sqsgd[nvflare]'") from error
