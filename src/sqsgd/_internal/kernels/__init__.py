"""The hot loops: rotate, round, scramble, sum, pack, unpack, select. The only package that imports numba.

Random words are arguments. The file tests/reference.py has each kernel in plain NumPy. No kernel calls one in
another file, because numba's cache would not notice edits there. Callers import inside functions, because
numba loads slowly.
"""

import logging
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

Kernel = Callable[..., Any]
_LOG = logging.getLogger("sqsgd")


class _Told(event.Listener):
    """Says which kernel is compiled: seconds each, when a version first runs."""

    def on_start(self, event: Any) -> None:
        if (kernel := event.data["dispatcher"].py_func).__module__.startswith("sqsgd"):
            _LOG.info("compiling the kernel %s, once", kernel.__name__)

    def on_end(self, event: Any) -> None:
        _LOG.debug("compiled")


event.register("numba:compile", _Told())


def compiled(function: Kernel) -> Kernel:
    """Compile at the first call and cache the machine code on disk, or in memory if no folder is writable.

    A kernel must always be called with the same argument types: numba numbers versions in its cache without
    a lock, so processes may load another's code: tests/internal/test_kernels.py::test_one_version_each.
    """
    try:
        kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no writable folder
        kernel = numba.njit(nogil=True)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """Return a helper, compiled for any types into each kernel that calls it and cached with that kernel."""
    return numba.njit(nogil=True)(function)
