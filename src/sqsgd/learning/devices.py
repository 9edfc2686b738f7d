"""Where gradients are computed. Encoding, aggregation and the server's step always run on the processor."""

from __future__ import annotations

import torch


def find_device(name: str) -> str:
    """The device of this name, or for ``auto`` the best that is there; ValueError if it is not.

    >>> find_device("cpu")
    'cpu'
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, found in there.items() if found)
    if name not in there:
        raise ValueError(f"device = {name!r} must be one of auto, {', '.join(there)}")
    if not there[name]:
        why = "this torch was built without it" if name not in _built() else "no such device was found"
        others = ", ".join(device for device, found in there.items() if found)
        raise ValueError(f"device = {name!r}: {why}; here there is {others} (torch {torch.__version__})")
    return name


def _built() -> set[str]:
    backends = {"cuda": torch.backends.cuda, "mps": torch.backends.mps}
    return {name for name, backend in backends.items() if backend.is_built()}
