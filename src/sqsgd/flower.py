"""The short name of ``sqsgd.federation.flower``, for the imports of an app (docs/flower.md)."""

from typing import TYPE_CHECKING, Any

from sqsgd.federation import flower as _home

if TYPE_CHECKING:
    from sqsgd.federation.flower import *  # noqa: F403

__all__ = _home.__all__


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
