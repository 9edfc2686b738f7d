"""Scheme, bound and rate of a training where none are given.

Chosen for apps in the form of Flower's own, which send the change of a trained model, at few rounds
(docs/flower.md#what-a-quickstart-learns).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqsgd.core import Scheme
from sqsgd.training.rates import change_rate, learning_rate

SHORT = 1e-3
"""The default bound of changes, shorter than any that is worth reporting.

Sparse codes report the direction of a vector, and its length by the odds of a coin: one much shorter than
the bound is reported with the opposite sign nearly half of the time. With a short bound no sign is turned,
and the server's rate alone decides the length of a step.
"""


def chosen_scheme(
    make: Callable[..., Scheme], name: str, options: Mapping[str, Any], sends: str, *, once: bool
) -> Scheme:
    """The scheme that is named, or the default; ValueError if it keeps a residual for nodes asked once."""
    scheme = make(name, **options) if name else _default_scheme(make, options, sends)
    if once and scheme.residual:
        raise ValueError(
            f"scheme = {scheme.name!r} keeps a residual for a node's next report, and with "
            "once = true there is none: use scheme = 'privunit-index' or 'sqsgd-stateless'"
        )
    return replace(scheme, wire=2) if once else scheme


def _default_scheme(make: Callable[..., Scheme], options: Mapping[str, Any], sends: str) -> Scheme:
    """``sqsgd-stateless`` for changes of a model, if its codes are sparse; else ``sqsgd``.

    It learned more in each of 3, 10, 30 and 100 rounds (docs/flower.md). Options are those of ``sqsgd``.
    """
    if sends == "delta" and not options:
        scheme = make("sqsgd-stateless")
        if not scheme.follows_norms:
            return scheme
    return make("sqsgd", **options)


def default_bound(scheme: Scheme, sends: str) -> float:
    """``SHORT`` for changes if reports have no norms, else the scheme's own."""
    return SHORT if sends == "delta" and scheme.mechanism.fixed_length else scheme.first_bound


def default_rate(
    scheme: Scheme,
    *,
    sends: str,
    optimizer: str,
    momentum: float | None,
    clients: int,
    rounds: int,
    falls: bool,
    bound: float,
) -> float:
    """The rate of the first round. One that does not fall is half as large.

    ``momentum``: of an app's own choice; the rate is then that of plain SGD, whose steps add up.
    """
    if momentum is not None:
        optimizer = "sgd"
    if sends == "delta" and scheme.follows_norms:
        rate = change_rate(scheme, clients, optimizer)
    else:
        rate = (1.0 if falls else 0.5) * learning_rate(
            scheme, clients, optimizer, rounds=rounds or 600, bound=bound
        )
    return rate if momentum is None else rate * (1 - momentum)


def given_rate(lr: float, scheme: Scheme, sends: str, bound: float, own_bound: float | None) -> float:
    """The rate for a given ``lr``, which is the length of a step if the bound is a default for changes.

    All reports are then as long as the bound, which nobody chose.
    """
    by_default = own_bound is None and default_bound(scheme, sends) == SHORT
    return lr / bound if by_default else lr
