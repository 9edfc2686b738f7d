"""Options of Flower's other strategies: their meaning here, or why they have none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqsgd import checks

_LOG = logging.getLogger("flwr")
_ADAM = {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}
"""Options of ``FedAdam``, with its defaults. FedYogi and FedAdagrad have some of the same names."""
_MOST = 0.999999  # of a momentum: at one, nothing would be forgotten
_PRIVATE = "reports are private before they leave a node: use SqsgdStrategy(epsilon=...) without a wrapper"
_ROBUST = "it compares updates in the clear, which no node sends"
_FAIR = "it weighs nodes by their losses, which never leave them"
_REFUSED: Mapping[str, tuple[str, str]] = {
    "num_malicious_nodes": ("Krum, MultiKrum and Bulyan", _ROBUST),
    "num_nodes_to_select": ("MultiKrum", _ROBUST),
    "selection_rule": ("Bulyan", _ROBUST),
    "client_learning_rate": ("QFedAvg", _FAIR),
    "q": ("QFedAvg", _FAIR),
    "train_loss_key": ("QFedAvg", _FAIR),
    **dict.fromkeys(
        (
            "strategy", "noise_multiplier", "num_sampled_clients", "clipping_norm", "accountant",
            "initial_clipping_norm", "target_clipped_quantile", "clip_norm_lr", "clipped_count_stddev",
        ),
        ("Flower's differential privacy wrappers", _PRIVATE),
    ),
}  # fmt: skip
_RENAMED = {
    "fraction_fit": "fraction_train",
    "min_fit_clients": "min_train_nodes",
    "min_available_clients": "min_available_nodes",
    "on_fit_config_fn": "train_config of start",
    "evaluate_fn": "evaluate_fn of start",
    "initial_parameters": "initial_arrays of start",
}
"""Names in Flower's earlier strategies (``flwr.server.strategy``)."""


@dataclass(frozen=True, kw_only=True)
class Translation:
    """What the options of another strategy mean here."""

    optimizer: str
    lr: float | None = None
    multiple: float = 1.0
    """Of the default learning rate."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Of the ``Optimizer``: momentum and what else it has."""
    config: Mapping[str, float] = field(default_factory=dict)
    """For the nodes, in addition to the app's own configuration."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """Options that are not of another strategy."""


def translate(given: Mapping[str, Any], optimizer: str, lr: float | None) -> Translation:
    """Read the options of ``FedAdam``, ``FedAvgM`` and ``FedProx``; others' raise TypeError, with the reason.

    ``FedAdam``: eta is the rate, beta_1, beta_2 and tau are those of Adam. ``FedAvgM``: server_momentum is
    that of SGD; server_learning_rate multiplies the default rate, for 1 means the plain average in FedAvgM.
    ``FedProx``: proximal_mu is sent to the nodes, whose apps add the term to their loss.
    """
    rest = dict(given)
    for name in rest:
        if name in _REFUSED:
            whose, reason = _REFUSED[name]
            raise TypeError(f"{name} is an option of {whose}, and SqsgdStrategy cannot do the same: {reason}")
        if name in _RENAMED:
            raise TypeError(f"{name} is an option of Flower's earlier strategies: use {_RENAMED[name]}")
    config = {}
    if (mu := rest.pop("proximal_mu", None)) is not None:
        config = {"proximal-mu": checks.real("proximal_mu", mu, 0.0, 1e9)}
    if rest.pop("eta_l", None) is not None:
        _LOG.warning("sqsgd: eta_l is ignored, as by Flower: apps read their rate from train_config")
    if _ADAM.keys() & rest.keys():
        _check_single(rest, "FedAdam", "adam", optimizer, lr)
        values = {name: rest.pop(name, default) for name, default in _ADAM.items()}
        _LOG.warning("sqsgd: %s: FedAdam's options, so the server's optimizer is Adam", _listed(values))
        return Translation(
            optimizer="adam", lr=checks.positive("eta", values["eta"]), config=config, rest=rest,
            terms={
                "momentum": checks.real("beta_1", values["beta_1"], 0.0, _MOST),
                "second": checks.real("beta_2", values["beta_2"], 0.0, _MOST),
                "floor": checks.positive("tau", values["tau"]),
            },
        )  # fmt: skip
    momentum = checks.real("server_momentum", rest.pop("server_momentum", 0.0), 0.0, _MOST)
    multiple = checks.positive("server_learning_rate", rest.pop("server_learning_rate", 1.0))
    if momentum:
        _check_single(rest, "FedAvgM", "momentum", optimizer, None)
        _LOG.info("sqsgd: server_momentum = %g: the server's optimizer is SGD with momentum", momentum)
        optimizer = "momentum"
    if multiple != 1.0:
        if lr is not None:
            raise ValueError(f"lr = {lr!r} and server_learning_rate = {multiple!r}: give one of them")
        _LOG.info("sqsgd: server_learning_rate = %g: the rate is %g times the default", multiple, multiple)
    terms = {"momentum": momentum} if momentum else {}
    return Translation(optimizer=optimizer, lr=lr, multiple=multiple, terms=terms, config=config, rest=rest)


def _check_single(rest: Mapping[str, Any], whose: str, kind: str, optimizer: str, lr: float | None) -> None:
    """Raise ValueError if two optimizers, or two rates, are asked for."""
    mixed = [name for name in ("server_momentum", "server_learning_rate") if kind == "adam" and name in rest]
    if mixed:
        raise ValueError(f"{mixed[0]} is an option of FedAvgM, and others are FedAdam's: use those of one")
    if optimizer not in ("sgd", kind):
        raise ValueError(f"optimizer = {optimizer!r} with options of {whose}, whose optimizer is {kind!r}")
    if lr is not None:
        raise ValueError(f"lr = {lr!r} with options of {whose}, whose rate is eta: give one of them")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())
