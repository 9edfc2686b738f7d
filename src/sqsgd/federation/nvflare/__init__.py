"""sqsgd on NVFlare: ``SqsgdFilter`` at the clients, ``SqsgdAggregator`` at the server; docs/nvflare.md.

The only package that imports nvflare; it holds no maths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsgd.federation.nvflare.client import SqsgdFilter
    from sqsgd.federation.nvflare.server import SqsgdAggregator

__all__ = ["SqsgdAggregator", "SqsgdFilter"]

_HOMES = {
    "SqsgdFilter": "sqsgd.federation.nvflare.client",
    "SqsgdAggregator": "sqsgd.federation.nvflare.server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise ImportError(f"{name} needs NVFlare: pip install 'sqsgd[nvflare]'") from error
