"""A training that goes on from its checkpoint: with the scheme and the options that it was begun with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_same(known: Mapping[str, Any], now: Mapping[str, Any], rounds: int) -> None:
    """Raise ValueError if the checkpoint, ``known``, was begun with other options than those of ``now``."""
    for key in ("fingerprint", "optimizer", "once"):
        if (begun := known[key]) != now[key]:
            raise ValueError(
                f"this training was begun with {key} = {begun!r}, not {now[key]!r}: restore scheme, epsilon, "
                "bytes, model, optimizer and once, or start another with another out"
            )
    decay = known["decay_rounds"]  # 0: its rate does not fall
    if rounds and decay and decay != now["decay_rounds"]:
        raise ValueError(
            f"this training was begun for {decay} rounds, over which its rate falls: restore "
            f"num_rounds = {decay}, or start another with another out"
        )
