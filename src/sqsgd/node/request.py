"""What a server asks of one node in one round, and how it is checked on arrival."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.node.structure import DIGEST_BYTES, TYPES
from sqsgd.schemes import make_scheme
from sqsgd.task import Task

VERSION = 1
_MAX_OPTIONS = 4096
_HEX = 2 * DIGEST_BYTES
_TYPES: Mapping[str, type] = {
    "version": int, "name": str, "scheme": str, "epsilon": float, "bits": int, "options": str,
    "fingerprint": int, "round": int, "client": str, "seed": str, "dim": int, "bound": float, "clip": float,
    "alpha": float, "beta": float, "model": str, "base": int, "keep": bool,
}  # fmt: skip
_SLOT, _ARRAYS = "by_slot", "types"
_MAX_ARRAYS = 2**16


class MalformedRequest(ValueError):
    """A request that no sqsgd server sends."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the server asks of one node in one round. All of it is public, and none of it is trusted."""

    name: str
    """Names the training: a node answers each of its rounds once."""
    scheme: str
    epsilon: float
    bits: int
    options: Mapping[str, Any]
    fingerprint: int
    task: Task
    alpha: float = 1.0
    beta: float = 1.0
    model: str
    """Digest of the weights that the round starts from."""
    base: int = -1
    """The round whose model the node must hold; -1: the whole model comes with the request."""
    keep: bool = False
    """The node must keep the model: the next round may come as an update of it."""
    by_slot: bool = False
    """Nodes are asked once: the task's client is the number of a slot, which says nothing about the node."""
    types: str = ""
    """The types in which the app is given the weights (``Structure.types``); they travel as float32."""

    def make_scheme(self) -> Scheme:
        """The scheme that the request names, made here from its parts."""
        return make_scheme(
            self.scheme, dim=self.task.dim, epsilon=self.epsilon, bits=self.bits, **self.options
        )

    @property
    def identity(self) -> str:
        """A digest of everything that a report depends on: equal requests may have equal answers."""
        parts = (self.name, self.scheme, self.fingerprint, self.alpha, self.beta, self.model)
        content = self.task.binding + repr(parts).encode() + b"slot" * self.by_slot + self.types.encode()
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()

    def to_fields(self) -> dict[str, int | float | str | bytes]:
        """The request as named plain values, in the form in which it travels."""
        values = {
            **vars(self),
            **vars(self.task),
            "version": VERSION,
            "options": json.dumps(dict(self.options)),
            "client": str(self.task.client),  # 64 bits without a sign, which Flower's integers do not hold
            "seed": str(self.task.seed),
            "clip": self.task.clip or 0.0,
        }
        # Nodes of earlier versions refuse what they do not know, but only where it matters.
        optional = {_SLOT: self.by_slot, _ARRAYS: self.types}
        return {key: values[key] for key in _TYPES} | {key: value for key, value in optional.items() if value}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Request:
        """The inverse; raises MalformedRequest naming the first field that is wrong.

        Unknown keys are refused too: a server that asks for more than this version knows, such as seeded
        noise, gets no answer.
        """
        for key in fields:
            if key not in _TYPES and key not in (_SLOT, _ARRAYS):
                raise MalformedRequest(f"unknown key {key!r}")
        if fields.get(_SLOT, True) is not True:
            raise MalformedRequest(f"{_SLOT} = {_short(fields[_SLOT])} must be true, or left out")
        types = fields.get(_ARRAYS, "")
        if not isinstance(types, str) or len(types) > _MAX_ARRAYS or types.strip(TYPES):
            raise MalformedRequest(f"{_ARRAYS} = {_short(types)} must be letters of {TYPES!r}")
        for key, kind in _TYPES.items():
            if type(fields.get(key)) is not kind:
                raise MalformedRequest(f"{key} = {_short(fields.get(key))} must be of type {kind.__name__}")
        values: dict[str, Any] = dict(fields)
        if values["version"] != VERSION:
            raise MalformedRequest(f"version = {values['version']} is unknown; this node knows {VERSION}")
        if len(values["options"]) > _MAX_OPTIONS:
            raise MalformedRequest(f"options has {len(values['options'])} characters, above {_MAX_OPTIONS}")
        try:
            options = json.loads(values["options"])
            if not isinstance(options, dict):
                raise ValueError("options must be an object")
            for key in ("client", "seed"):
                if not values[key].isdecimal() or len(values[key]) > 20:
                    raise ValueError(f"{key} = {_short(values[key])} must be a whole number")
            task = Task(
                round=values["round"],
                client=int(values["client"]),
                seed=int(values["seed"]),
                dim=values["dim"],
                bound=values["bound"],
                clip=values["clip"] or None,
            )
            for key in ("alpha", "beta"):
                checks.real(key, values[key], 0.0, 1e6)
            checks.real("epsilon", values["epsilon"], 0.0, math.inf)
            checks.integer("base", values["base"], -1, task.round)
            if not values["name"].isprintable() or not 1 <= len(values["name"]) <= 150:
                raise ValueError("name must be 1 to 150 printable characters")
            if len(values["model"]) != _HEX or not set(values["model"]) <= set("0123456789abcdef"):
                raise ValueError(f"model must be a digest of {_HEX} hexadecimal digits")
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(str(error)) from None
        kept = ("name", "scheme", "epsilon", "bits", "fingerprint", "alpha", "beta", "model", "base", "keep")
        optional: dict[str, Any] = {"by_slot": _SLOT in fields, "types": types}
        return cls(task=task, options=options, **optional, **{key: values[key] for key in kept})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
