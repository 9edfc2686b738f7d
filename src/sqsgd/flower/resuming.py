"""A training that goes on from its checkpoint: with the scheme and the options that it was begun with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqsgd.core import Scheme
from sqsgd.federated.robust import MEAN
from sqsgd.schemes.sqsgd import CODED


def begun_options(
    make: Callable[..., Scheme], name: str, options: dict[str, Any], known: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The scheme, by default the one it was begun with, and its options.

    A training of a version without sparse codes keeps the code that it chose.
    """
    name = name or known.get("run", {}).get("scheme", "sqsgd")
    for code in ("signs", "levels") if name in CODED and "code" not in options else ():
        if make(name, **options, code=code).fingerprint == known.get("fingerprint"):
            return name, {**options, "code": code}
    return name, options


def check_same(known: Mapping[str, Any], now: Mapping[str, Any], rounds: int) -> None:
    """Raise ValueError if the checkpoint, ``known``, was begun with other options than those of ``now``."""
    for key, earlier in (("fingerprint", False), ("optimizer", False), ("aggregate", MEAN), ("once", False)):
        if (begun := known.get(key, earlier)) != now[key]:
            raise ValueError(
                f"this training was begun with {key} = {begun!r}, not {now[key]!r}: restore scheme, epsilon, "
                "bytes, model, optimizer, aggregate and once, or start another with another out"
            )
    decay = known.get("decay_rounds", 0)  # 0: its rate does not fall, as in earlier versions for most schemes
    if rounds and decay and decay != now["decay_rounds"]:
        raise ValueError(
            f"this training was begun for {decay} rounds, over which its rate falls: restore "
            f"num_rounds = {decay}, or start another with another out"
        )
    if now["once"] and "order" not in known:
        raise ValueError(
            "this training was begun by an earlier version, which named nodes in requests and "
            "results: it cannot be resumed; start another with another out"
        )
