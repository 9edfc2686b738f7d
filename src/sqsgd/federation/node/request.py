"""What a server asks of one node in one round, and the model that comes with it: all of it is checked."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.core.task import Task
from sqsgd.federation.node.structure import DIGEST_BYTES, Arrays, Structure, digest, flatten
from sqsgd.schemes import make_scheme
from sqsgd.training.settings import MOST_REPORTS

VERSION = 1
TRAINING, EVALUATION = "training", "evaluation"
_MAX_OPTIONS = 4096
# Client and seed have 64 bits without a sign, which Flower's integers do not hold.
_OF_TASK: Mapping[str, type] = {
    "round": int, "client": str, "seed": str, "dim": int, "bound": float, "clip": float,
}  # fmt: skip
_OWN: Mapping[str, type] = {
    "name": str, "scheme": str, "epsilon": float, "bytes": int, "options": str, "fingerprint": int,
    "alpha": float, "beta": float, "model": str, "by_slot": bool, "reports": int, "normalise": bool,
    "purpose": str,
}  # fmt: skip
_FIELDS: Mapping[str, type] = {"version": int, **_OWN, **_OF_TASK}


class MalformedRequest(ValueError):
    """A request that no sqsgd server sends."""


class NotAsked(MalformedRequest):
    """A message without a request: the server's side of the app does not use sqsgd."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the server asks of one node in one round. All of it is public, and none of it is trusted."""

    name: str
    """Of the training: a node answers each of its rounds once."""
    scheme: str
    epsilon: float
    bytes: int
    options: Mapping[str, Any]
    fingerprint: int
    task: Task
    alpha: float = 1.0
    beta: float = 1.0
    model: str
    """Digest of the weights that the round starts from."""
    by_slot: bool = False
    """The task's client is the number of a slot, which says nothing about the node."""
    reports: int = 1
    """How often the node is asked in the training, if it is asked by slot."""
    normalise: bool = False
    """Per record: scale every gradient to the bound, also shorter ones."""
    purpose: str = TRAINING
    """``evaluation``: the number of correct predictions, with noise per record."""

    def make_scheme(self) -> Scheme:
        budget: Any = {"dim": self.task.dim, "epsilon": self.epsilon, "bytes": self.bytes}
        return make_scheme(self.scheme, **budget, **self.options)

    @property
    def identity(self) -> str:
        """A digest of everything that a report depends on: equal requests may have equal answers."""
        scheme = (self.scheme, self.fingerprint, self.alpha, self.beta)
        asked = (self.model, self.by_slot, self.reports, self.normalise, self.purpose)
        content = self.task.binding + repr((self.name, *scheme, *asked)).encode()
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()

    def to_fields(self) -> dict[str, Any]:
        values = {
            **vars(self),
            **vars(self.task),
            "version": VERSION,
            "options": json.dumps(dict(self.options)),
            "clip": self.task.clip or 0.0,
        }
        return {key: kind(values[key]) for key, kind in _FIELDS.items()}  # exact types, not NumPy's

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Self:
        """Return the inverse of ``to_fields``.

        Raises:
          MalformedRequest: names the first field that is wrong or unknown, such as one for seeded noise.
        """
        for key in fields:
            if key not in _FIELDS:
                raise MalformedRequest(f"unknown key {_short(key)}")
        for key, kind in _FIELDS.items():
            if type(fields.get(key)) is not kind:
                raise MalformedRequest(f"{key} = {_short(fields.get(key))} must be of type {kind.__name__}")
        values: dict[str, Any] = dict(fields)
        try:
            checks.integer("version", values["version"], VERSION, VERSION)
            checks.integer("the length of options", len(values["options"]), 2, _MAX_OPTIONS)
            values["options"] = json.loads(values["options"])
            if not isinstance(values["options"], dict):
                raise ValueError("options must be an object")
            for key in ("client", "seed"):
                if not values[key].isdecimal() or len(values[key]) > 20:
                    raise ValueError(f"{key} = {_short(values[key])} must be a whole number")
                values[key] = int(values[key])
            task = Task(**{key: values[key] for key in _OF_TASK} | {"clip": values["clip"] or None})
            for key, most in (("alpha", 1e6), ("beta", 1e6), ("epsilon", math.inf)):
                checks.real(key, values[key], 0.0, most)
            checks.integer("bytes", values["bytes"], 1, 2**37)
            checks.integer("reports", values["reports"], 1, MOST_REPORTS)
            if values["purpose"] not in (TRAINING, EVALUATION):
                raise ValueError(f"purpose = {_short(values['purpose'])} must be training or evaluation")
            if not values["name"].isprintable() or not 1 <= len(values["name"]) <= 150:
                raise ValueError("name must be 1 to 150 printable characters")
            if len(bytes.fromhex(values["model"])) != DIGEST_BYTES:
                raise ValueError(f"model must be a digest of {DIGEST_BYTES} bytes")
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(str(error)) from None
        return cls(task=task, **{key: values[key] for key in _OWN})

    def received(self, arrays: Arrays) -> tuple[Structure, Vector]:
        """Return the model that came with the request. Raises MalformedRequest if it is another one."""
        try:
            structure, weights = flatten(arrays)
        except ValueError as error:
            raise MalformedRequest(str(error)) from None
        if digest(weights) != self.model:
            raise MalformedRequest("the model does not have the digest that the request states")
        if structure.dim != self.task.dim and self.purpose == TRAINING:
            raise MalformedRequest(f"dim = {self.task.dim}, but the model has {structure.dim} weights")
        return structure, weights


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
