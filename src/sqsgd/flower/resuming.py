"""What the strategy's checkpoint must know beside the model, and how a training is gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqsgd.flower.silence import Silence

if TYPE_CHECKING:
    from sqsgd.flower.strategy import SqsgdStrategy


def about(strategy: SqsgdStrategy) -> dict[str, Any]:
    """For a checkpoint."""
    return {
        "name": strategy.name,
        "seed": strategy.settings.seed,
        "fingerprint": strategy.scheme.fingerprint,
        "rate": strategy.settings.optimizer.rate,
        "optimizer": strategy.optimizer,
        "once": strategy.once,
        "asking": sorted(strategy.asking),
        "silence": strategy.silence.to_dict(),
    }


def take_up(strategy: SqsgdStrategy, known: Mapping[str, Any]) -> None:
    """Go on as the checkpoint began; raises ValueError where that is not what was asked for."""
    for key, now in (
        ("fingerprint", strategy.scheme.fingerprint),
        ("optimizer", strategy.optimizer),
        ("once", strategy.once),
    ):
        if known.get(key, False) != now:
            raise ValueError(
                f"this training was begun with {key} = {known.get(key, False)!r}, not {now!r}: put scheme, "
                "epsilon, bytes, model, optimizer and once back, or start another with another out"
            )
    strategy.name, strategy.seed = known["name"], known["seed"]
    strategy.asking = frozenset(known.get("asking", ()))
    strategy.silence = Silence(known.get("silence"))
    strategy.settings = replace(
        strategy.settings,
        seed=strategy.seed,
        optimizer=replace(strategy.settings.optimizer, rate=strategy.lr or known["rate"]),
    )
