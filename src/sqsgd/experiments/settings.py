"""The server's settings for a run, with defaults that suit every budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqsgd.core import Scheme
from sqsgd.federated.optimizers import Optimizer
from sqsgd.federated.order import Order, seeded_order
from sqsgd.federated.rates import bound_and_rate, earlier_rate
from sqsgd.federated.robust import check_aggregate
from sqsgd.learning.features import PRETRAINED, extractor_and_model
from sqsgd.numerics.epsilon_sums import total
from sqsgd.privacy.ledger import Ledgers
from sqsgd.training import Settings
from sqsgd.training.settings import RunConfig, cores


def softmax_once(config: RunConfig) -> bool:
    """Whether each client answers once, for a softmax on public features of unit length."""
    features, model = extractor_and_model(config.features, config.model)
    linear = model in ("linear", PRETRAINED)
    return config.once and config.optimizer == "sgd" and bool(features) and linear


def starts_from_public_head(config: RunConfig) -> bool:
    """Whether the model is a softmax that was trained on public data."""
    return extractor_and_model(config.features, config.model)[1] == PRETRAINED


def begun_settings(
    config: RunConfig, scheme: Scheme, settings: Settings, kept: Mapping[str, Any]
) -> Settings:
    """The settings at the rate that a run was begun with, or by the rule of versions that did not keep it.

    tests/experiments/test_settings.py::test_a_run_keeps_its_rate.
    """
    rate = kept.get("rate", settings.optimizer.rate)
    if not ("rate" in kept or config.lr or scheme.mechanism.fixed_length or softmax_once(config)):
        rate = earlier_rate(scheme, config.participants or config.clients, config.optimizer)
    return replace(settings, optimizer=replace(settings.optimizer, rate=rate))


def make_settings(config: RunConfig, scheme: Scheme) -> Settings:
    """The settings of a new run."""
    decays = config.decay == "linear"
    bound, rate = bound_and_rate(
        scheme,
        clients=config.participants or config.clients,
        rounds=config.rounds,
        optimizer=config.optimizer,
        decays=decays,
        softmax=softmax_once(config),
        pretrained=starts_from_public_head(config),
        bound=config.bound,
        lr=config.lr,
    )
    scheme.check_clip(config.clip or None)
    check_aggregate(config.aggregate, scheme, config.participants or config.clients)
    return Settings(
        seed=config.seed,
        optimizer=Optimizer(kind=config.optimizer, rate=rate),
        bound=bound,
        track=config.track,
        clip=config.clip or None,
        alpha=config.alpha,
        beta=config.beta,
        aggregate=config.aggregate,
        weigh_by_size=config.weigh_by_size,
        decay_rounds=config.rounds if decays else 0,
        ledgers=_ledgers(config, scheme),
        secure=config.secure,
        order=_seeded_order(config),
        workers=config.workers or cores(),
    )


def _seeded_order(config: RunConfig) -> Order | None:
    """The order of a simulation in which each user reports once; a secret one is drawn when a run begins."""
    if not config.once or config.secure:
        return None
    return seeded_order(config.clients, config.participants or 1, config.seed)


def _ledgers(config: RunConfig, scheme: Scheme) -> Ledgers | None:
    """Ledgers whose cap is the announced cost of the run."""
    if not config.ledgers:
        return None
    if not scheme.privacy.is_pure_local:
        raise ValueError(f"ledgers = {config.ledgers!r}: scheme = {config.scheme!r} is not locally private")
    if scheme.privacy.arithmetic != "exact":
        raise ValueError(
            f"ledgers = {config.ledgers!r}: scheme = {config.scheme!r} is private in real arithmetic only, "
            "which ledgers do not certify; choose another scheme, or omit ledgers"
        )
    cap = total(scheme.privacy.epsilon, 1 if config.once else config.rounds)
    return Ledgers(folder=Path(config.ledgers), max_epsilon=cap)
