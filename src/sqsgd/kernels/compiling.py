"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba

Kernel = Callable[..., Any]


def compiled(function: Kernel) -> Kernel:
    """Compile at the first call and keep the machine code on disk; in memory where nothing is writable.

    A kernel is only ever called with arguments of one set of types. numba numbers the versions of a
    function in its cache without a lock, so two processes that first compile different versions can
    give them one number, and either may then be handed the other's code. For other types, make
    another kernel with :func:`variant`; tests/kernels/test_compiling.py::test_one_version_each.
    """
    try:
        kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder that it may write to
        kernel = numba.njit(nogil=True)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """For kernels only: compiled into each kernel that calls it, for any types, and kept with that kernel."""
    return numba.njit(nogil=True)(function)


def variant(function: Any, name: str) -> Kernel:
    """The same function as a kernel of its own, under its own name in the cache."""
    clone = FunctionType(function.__code__, function.__globals__, name, None, function.__closure__)
    clone.__qualname__ = name
    clone.__doc__ = function.__doc__
    return compiled(clone)
