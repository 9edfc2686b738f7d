"""The server's settings for a run, with defaults that suit every budget."""

from __future__ import annotations

from pathlib import Path

from sqsgd.core import Scheme
from sqsgd.federated import Settings
from sqsgd.federated.optimizers import Optimizer
from sqsgd.federated.order import Order, seeded_order
from sqsgd.federated.rates import bound_and_rate
from sqsgd.ledger.client_ledgers import Ledgers
from sqsgd.numerics.epsilon_sums import total
from sqsgd.runs.config import RunConfig, cores


def make_settings(config: RunConfig, scheme: Scheme, features: bool, *, pretrained: bool = False) -> Settings:
    """The settings; ``features``: the model is a softmax on public features of unit length."""
    softmax = config.once and features and config.optimizer == "sgd"
    decays = config.decay == "linear"
    bound, rate = bound_and_rate(
        scheme,
        clients=config.participants or config.clients,
        rounds=config.rounds,
        optimizer=config.optimizer,
        decays=decays,
        softmax=softmax,
        pretrained=pretrained,
        bound=config.bound,
        lr=config.lr,
    )
    scheme.check_clip(config.clip or None)
    return Settings(
        seed=config.seed,
        optimizer=Optimizer(kind=config.optimizer, rate=rate),
        bound=bound,
        track=config.track,
        clip=config.clip or None,
        alpha=config.alpha,
        beta=config.beta,
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
