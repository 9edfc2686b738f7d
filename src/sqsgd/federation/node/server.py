"""The server's side, independent of the transport: the settings of a training, and when it has failed."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from sqsgd.core import Scheme
from sqsgd.core.codec import Columns, MalformedReport
from sqsgd.core.task import Task
from sqsgd.federation.node.policy import REASONS
from sqsgd.federation.node.request import Request
from sqsgd.privacy.planner import automatic_scheme
from sqsgd.schemes import check_name, make_scheme
from sqsgd.training import Settings
from sqsgd.training.rates import change_rate, learning_rate

SHORT = 1e-3
"""The default bound of changes of a model, shorter than any that is worth reporting.

Sparse codes turn the sign of a vector much shorter than the bound nearly half of the time. With a short bound
none is turned, and the server's rate alone decides the length of a step.
"""


class NoAnswers(RuntimeError):
    """Too few nodes sent a valid report."""


@dataclass(frozen=True, kw_only=True)
class FederationSettings(Settings):
    """What the nodes are asked for, and what the server does with their reports.

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

    def __post_init__(self) -> None:
        if vars(self)["seed"] is None:
            object.__setattr__(self, "seed", secrets.randbits(64))
        super().__post_init__()
        for name, kind in get_type_hints(Settings).items():  # requests and files need these, not NumPy's
            if kind in (float, int):
                object.__setattr__(self, name, kind(getattr(self, name)))
        if self.scheme != "auto":
            check_name("scheme", self.scheme)
        if self.sends not in ("delta", "gradient"):
            raise ValueError(f"sends = {self.sends!r} must be one of delta, gradient")

    def make_scheme(self, dim: int, *, visits: float = 1.0, apart: float = 1.0, once: bool = False) -> Scheme:
        """The scheme for a model of ``dim`` weights; ``once``: nodes report by slot, and are not named."""
        budget: dict[str, Any] = {"dim": dim, "epsilon": self.epsilon, "bytes": self.bytes}
        name, options = self.scheme, self.options
        if name == "auto" and self.sends == "delta":
            sparse = not self.options and not make_scheme("sqsgd-stateless", **budget).follows_norms
            name = "sqsgd-stateless" if sparse else "sqsgd"
        elif name == "auto":
            name, options = automatic_scheme(**budget, visits=visits, apart=apart, options=options)
        scheme = make_scheme(name, **budget, **options)
        if once and scheme.keeps_state:
            raise ValueError(
                f"scheme = {scheme.name!r} keeps a residual for a node's next report, and with "
                "once = true there is none: use scheme = 'privunit-index' or 'sqsgd-stateless'"
            )
        scheme.check_clip(self.clip_norm or None)
        return scheme

    def for_rounds(self, scheme: Scheme, *, clients: int, rounds: int) -> Settings:
        """The settings of the server's step, with ``clients`` reports per round; ``rounds`` 0: unknown."""
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
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Settings)}
        options = {**self.options, "average": scheme.average} if scheme.average else self.options
        values |= {"scheme": scheme.name, "options": options, "bound": bound, "lr": rate, "rounds": rounds}
        return Settings(**values | {"decay": "linear" if falls else "none"})


def make_request(
    scheme: Scheme, settings: Settings, task: Task, name: str, model: str, **slots: Any
) -> Request:
    """The request for a task; ``slots``: fields of ``Request`` where nodes are asked by slot."""
    same: dict[str, Any] = {"scheme": scheme.name, "fingerprint": scheme.fingerprint}
    same |= {key: getattr(settings, key) for key in ("epsilon", "bytes", "options", "alpha", "beta")}
    return Request(name=name, task=task, model=model, **slots, **same)


def open_report(scheme: Scheme, payload: object, task: Task) -> Columns:
    """The report's columns; raises MalformedReport."""
    if not isinstance(payload, bytes):
        raise MalformedReport("type", f"the payload is {type(payload).__name__}, not bytes")
    if len(payload) != scheme.bits // 8:
        told = f"the report has {len(payload)} bytes; it must have {scheme.bits // 8}"
        raise MalformedReport("length", told)
    return scheme.open(payload, task)


def rejection(error: Exception) -> str:
    """Why an answer was rejected; of an unexpected error only the class is shown."""
    return str(error) if isinstance(error, MalformedReport) else f"unreadable ({type(error).__name__})"


def known_reason(reason: object, otherwise: str) -> str:
    """One of the fixed reasons of a node; anything else is not shown, for a node could write anything."""
    return reason if isinstance(reason, str) and reason in REASONS else otherwise


def nothing_trained(lines: Sequence[Mapping[str, Any]]) -> str:
    """Why the rounds in ``metrics.jsonl`` did not move the model; empty if one did, or there are none."""
    if not lines or any(line["stepped"] for line in lines):
        return ""
    reasons = Counter(str(entry.get("reason")) for line in lines for entry in line["rejected"])
    most = [f"; the most frequent reason: {reason}" for reason, _ in reasons.most_common(1)]
    return f"none of {len(lines)} rounds had enough answers, so nothing was trained{''.join(most)}"
