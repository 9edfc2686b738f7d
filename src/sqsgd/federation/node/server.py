"""The server's side, independent of the transport: the settings of a training, and when it has failed."""

import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, get_type_hints

from sqsgd._internal import checks
from sqsgd.core import Aggregate, Scheme
from sqsgd.core.codec import Columns, MalformedReport
from sqsgd.core.task import Task
from sqsgd.federation.node.policy import REASONS
from sqsgd.federation.node.request import Request
from sqsgd.mechanisms.gaussian_account import LEAST_EPSILON
from sqsgd.privacy.planner import automatic_scheme
from sqsgd.schemes import check_name, make_scheme
from sqsgd.schemes.sqsgd_record import options_of
from sqsgd.training import Settings
from sqsgd.training.rates import RECORD_BOUND, change_rate, learning_rate
from sqsgd.training.settings import RECORD

SHORT = 1e-3
"""The default bound of changes of a model, shorter than any that is worth reporting.

Sparse codes turn the sign of a vector much shorter than the bound nearly half of the time. With a short bound
none is turned, and the server's rate alone decides the length of a step.
"""


class NoAnswers(RuntimeError):
    """Too few nodes sent a valid report."""


@dataclass(frozen=True, kw_only=True)
class FederationSettings(Settings):
    """The settings for the requests to the nodes and for processing their reports.

    With the default bound of changes of a model, ``lr`` is the length of the first step.
    """

    seed: int = field(default_factory=lambda: secrets.randbits(64))
    """By default, and for None, it is drawn."""
    secure: bool = True
    scheme: str = "auto"
    """``auto``: for changes of a model, whose local steps a node already adds up, ``sqsgd-stateless`` if its
    codes are sparse, else ``sqsgd``; for gradients ``privacy.planner.automatic_scheme``."""
    sends: Literal["delta", "gradient"] = "delta"
    """What the apps compute: the change of a trained model, as Flower's own apps do, or a gradient."""
    unit: Literal["client", "record"] = "client"
    """``record``: ``epsilon`` and ``delta`` are of each record of a node in the whole training. The apps name
    their records (``record_report``); ``records`` is the public number by which their sums are divided."""

    rule: str = ""
    """Per record, for rate and bound: ``softmax`` for a linear model on rows of unit length; see
    ``rates.RECORD_BOUND``."""

    def __post_init__(self) -> None:
        if vars(self)["seed"] is None:
            object.__setattr__(self, "seed", secrets.randbits(64))
        super().__post_init__()
        for name, kind in get_type_hints(Settings).items():  # requests and files need these, not NumPy's
            if kind in (float, int):
                object.__setattr__(self, name, kind(getattr(self, name)))
        if self.scheme != "auto":
            check_name("scheme", self.scheme)
        if self.unit not in ("client", "record"):
            raise ValueError(f"unit = {self.unit!r} must be one of client, record")
        if self.unit == "record" and self.scheme == "auto":
            object.__setattr__(self, "scheme", RECORD)
        if (self.unit == "record") != (self.scheme == RECORD):
            raise ValueError(f"unit = {self.unit!r} with scheme = {self.scheme!r}: records take {RECORD!r}")
        if self.rule not in ("", *RECORD_BOUND):
            raise ValueError(f"rule = {self.rule!r} must be one of {', '.join(RECORD_BOUND)}")
        if self.unit == "record" and self.lr and not self.records:
            divided = "a public number (an estimate will do) by which sums are divided"
            raise ValueError(f"lr = {self.lr:g} needs records, {divided}")
        if self.sends not in ("delta", "gradient"):
            raise ValueError(f"sends = {self.sends!r} must be one of delta, gradient")

    def make_scheme(self, dim: int, *, visits: float = 1.0, apart: float = 1.0, once: bool = False) -> Scheme:
        """The scheme for a model of ``dim`` weights; ``once``: nodes report by slot, and are not named."""
        if self.unit == "record" and once:
            raise ValueError("unit = 'record' takes part in all rounds: omit once and reports")
        if self.unit == "record":
            return super().make_scheme(dim)
        budget: dict[str, Any] = {"dim": dim, "epsilon": self.epsilon, "bytes": self.budget(dim)}
        name, options = self.scheme, self.options
        if name == "auto" and self.sends == "delta":
            sparse = not self.options and not make_scheme("sqsgd-stateless", **budget).follows_norms
            name = "sqsgd-stateless" if sparse else "sqsgd"
        elif name == "auto":
            name, options = automatic_scheme(**budget, visits=visits, apart=apart, options=options)
        scheme = make_scheme(name, **budget, **options)
        if once and scheme.keeps_state:
            kept = f"scheme = {scheme.name!r} keeps a residual for a next report, and with once there is none"
            raise ValueError(f"{kept}: use scheme = 'privunit-index' or 'sqsgd-stateless'")
        self.check_fits(scheme)
        return scheme

    def for_rounds(self, scheme: Scheme, *, clients: int, rounds: int) -> Settings:
        """The settings of the server's step, with ``clients`` reports per round; ``rounds`` 0: unknown."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Settings)}
        if scheme.sums_records:
            return Settings(**values).fitted(scheme, clients, rule=self.rule)
        changes = self.sends == "delta"
        short = changes and not self.bound and scheme.mechanism.traits.fixed_length
        bound = self.bound or (SHORT if short else scheme.first_bound)
        linear = self.decay == "linear" or (self.decay == "auto" and not scheme.follows_norms)
        falls = linear and bool(rounds)
        if self.lr:
            rate = self.lr / bound if short else self.lr
        elif changes and scheme.follows_norms:
            rate = change_rate(scheme, clients, self.optimizer)
        else:  # a rate that does not fall is half as large
            rate = learning_rate(scheme, clients, self.optimizer, rounds=rounds or 600, bound=bound)
            rate *= 1.0 if falls else 0.5
        options = {**self.options, "average": scheme.average} if scheme.average else self.options
        values |= {"scheme": scheme.name, "options": options, "bound": bound, "lr": rate, "rounds": rounds}
        values["bytes"] = self.budget(scheme.dim)
        return Settings(**values | {"decay": "linear" if falls else "none"})


def make_request(
    scheme: Scheme, settings: Settings, task: Task, name: str, model: str, **more: Any
) -> Request:
    """The request for a task; ``more``: other fields of ``Request``, as where nodes are asked by slot."""
    same: dict[str, Any] = {"scheme": scheme.name, "fingerprint": scheme.fingerprint}
    same |= {key: getattr(settings, key) for key in ("epsilon", "bytes", "options", "alpha", "beta")}
    if scheme.sums_records:
        same |= {"epsilon": scheme.privacy.epsilon, "bytes": -(-scheme.code_bits // 8)}
        same |= {"options": options_of(scheme), "normalise": settings.normalise}
    return Request(name=name, task=task, model=model, **same, **more)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One count of correct predictions at each node, with noise that protects each of its records.

    The count is a sum of ones, of which each record adds at most one. So S nodes have together the noise
    √S σ, where σ is 3.73 at (1, 10^-5) and 30.7 at (0.1, 10^-5): of ten nodes with 1,000 records each .12 and
    .97 points of accuracy (tests/node/test_request.py::test_the_noise_of_an_evaluation).
    """

    epsilon: float
    """ε of the evaluation, for each record at ``delta``."""
    delta: float
    records: int
    """The public number of a node's records by which its count is divided."""

    def __post_init__(self) -> None:
        checks.real("evaluation_epsilon", self.epsilon, LEAST_EPSILON, 1e5)
        checks.integer("evaluation_records", self.records, 1, 2**40)

    @cached_property
    def scheme(self) -> Scheme:
        return make_scheme(RECORD, dim=1, epsilon=self.epsilon, bytes=None, delta=self.delta, levels=2)

    def measured(self, reports: Sequence[tuple[Task, Columns, float]]) -> dict[str, float]:
        """The accuracy, the half-width of the 95 % interval that the noise leaves, and the nodes counted."""
        if not reports:
            return {}
        mean = Aggregate(self.scheme)
        for task, columns, _ in reports:
            mean.add_columns(task, columns)
        noise = self.scheme.mechanism.deviation / self.records / math.sqrt(mean.count)  # type: ignore[attr-defined]
        accuracy = float(mean.mean()[0]) / self.records
        return {"accuracy": accuracy, "accuracy_within": 1.96 * noise, "nodes": mean.count}


def open_report(scheme: Scheme, payload: object, task: Task) -> Columns:
    """Return the report's columns. Raises MalformedReport."""
    if not isinstance(payload, bytes):
        raise MalformedReport("type", f"the payload is {type(payload).__name__}, not bytes")
    if len(payload) != scheme.bits // 8:
        told = f"the report has {len(payload)} bytes; it must have {scheme.bits // 8}"
        raise MalformedReport("length", told)
    return scheme.open(payload, task)


def rejection(error: Exception) -> str:
    """Why an answer was rejected. Of an unexpected error only the class is shown."""
    return str(error) if isinstance(error, MalformedReport) else f"unreadable ({type(error).__name__})"


def known_reason(reason: object, otherwise: str) -> str:
    """One of the fixed reasons of a node; anything else is not shown, for a node could write anything."""
    return reason if isinstance(reason, str) and reason in REASONS else otherwise


def nothing_trained(lines: Sequence[Mapping[str, Any]]) -> str:
    """Why the rounds in ``metrics.jsonl`` did not move the model. Empty if one did, or there are none."""
    if not lines or any(line["stepped"] for line in lines):
        return ""
    reasons = Counter(str(entry.get("reason")) for line in lines for entry in line["rejected"])
    most = [f"; the most frequent reason: {reason}" for reason, _ in reasons.most_common(1)]
    return f"none of {len(lines)} rounds had enough answers, so nothing was trained{''.join(most)}"
