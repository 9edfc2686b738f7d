"""The short name of ``sqsgd.federation.nvflare``: the parts for an NVFlare job (docs/nvflare.md)."""

from typing import TYPE_CHECKING, Any

from sqsgd.federation import nvflare as _home

if TYPE_CHECKING:
    from sqsgd.federation.nvflare import *  # noqa: F403

__all__ = _home.__all__


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
