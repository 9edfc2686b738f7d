"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call and keep the machine code on disk; in memory where nothing is writable."""
    try:
        kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder that it may write to
        kernel = numba.njit(nogil=True)(function)
    return kernel
