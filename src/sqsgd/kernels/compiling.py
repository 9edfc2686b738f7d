"""Decorators that compile kernels with numba."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba

Kernel = Callable[..., Any]


def compiled(function: Kernel) -> Kernel:
    """Compile at the first call and cache the machine code on disk, or in memory if no folder is writable.

    A kernel must always be called with the same argument types. numba numbers the versions of a function in
    its cache without a lock, so two processes that first compile different versions can give them the same
    number, and one may then load the other's code. For other types, make another kernel with
    :func:`variant`; tests/kernels/test_compiling.py::test_one_version_each.
    """
    try:
        kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no writable folder
        kernel = numba.njit(nogil=True)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """A helper, compiled for any types into each kernel that calls it and cached with that kernel."""
    return numba.njit(nogil=True)(function)


def variant(function: Any, name: str) -> Kernel:
    """The same function as a separate kernel, with its own name in the cache."""
    clone = FunctionType(function.__code__, function.__globals__, name, None, function.__closure__)
    clone.__qualname__ = name
    clone.__doc__ = function.__doc__
    return compiled(clone)
