"""The hot loops: rotate, round, scramble, sum, pack, unpack, select. The only package that imports numba.

Everything here is deterministic: random words are arguments. Each kernel has a plain NumPy reference in
tests/reference.py, and tests/kernels compares the two. No kernel calls one in another file, because numba's
cache does not notice edits to helpers in other files. Callers import a kernel inside the function that uses
it, so that ``import sqsgd`` does not load numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

Kernel = Callable[..., Any]


def compiled(function: Kernel) -> Kernel:
    """Compile at the first call and cache the machine code on disk, or in memory if no folder is writable.

    A kernel must always be called with the same argument types. numba numbers the versions of a function in
    its cache without a lock, so two processes that first compile different versions can give them the same
    number, and one may then load the other's code: tests/internal/test_compiling.py::test_one_version_each.
    """
    try:
        kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no writable folder
        kernel = numba.njit(nogil=True)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """A helper, compiled for any types into each kernel that calls it and cached with that kernel."""
    return numba.njit(nogil=True)(function)
