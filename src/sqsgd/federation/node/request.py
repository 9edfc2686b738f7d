"""What a server asks of one node in one round, and the model that comes with it: all of it is checked.

A node that answered the previous round holds its model. It may receive that round's accepted reports instead
of the new model, repeats the server's step with the server's own code, and arrives at the server's weights;
a digest in the request proves it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.core.task import Task
from sqsgd.federation.node.structure import DIGEST_BYTES, TYPES, Arrays, Structure, digest, flatten
from sqsgd.schemes import make_scheme
from sqsgd.training import Settings, State, server_step

VERSION = 1
_MAX_OPTIONS, _MAX_ARRAYS, _HEX = 4096, 2**16, 2 * DIGEST_BYTES
_OF_TASK: Mapping[str, type] = {
    "round": int, "client": str, "seed": str, "dim": int, "bound": float, "clip": float,
}  # fmt: skip
_OWN: Mapping[str, type] = {
    "name": str, "scheme": str, "epsilon": float, "bytes": int, "options": str, "fingerprint": int,
    "alpha": float, "beta": float, "model": str, "base": int, "keep": bool, "by_slot": bool, "types": str,
}  # fmt: skip
_FIELDS: Mapping[str, type] = {"version": int, **_OWN, **_OF_TASK}
_CLIENT = struct.Struct("<Q")
Update: TypeAlias = dict[str, float | bytes]


class MalformedRequest(ValueError):
    """A request that no sqsgd server sends."""


class ModelMissing(Exception):
    """The node does not hold the model that an update starts from."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the server asks of one node in one round. All of it is public, and none of it is trusted."""

    name: str
    """Names the training: a node answers each of its rounds once."""
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
            self.scheme, dim=self.task.dim, epsilon=self.epsilon, bytes=self.bytes, **self.options
        )

    @property
    def identity(self) -> str:
        """A digest of everything that a report depends on: equal requests may have equal answers."""
        parts = (
            self.name, self.scheme, self.fingerprint, self.alpha, self.beta, self.model, self.by_slot,
            self.types,
        )  # fmt: skip
        content = self.task.binding + repr(parts).encode()
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()

    def to_fields(self) -> dict[str, Any]:
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
        return {key: float(values[key]) if kind is float else values[key] for key, kind in _FIELDS.items()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Request:
        """The inverse of ``to_fields``.

        Raises:
          MalformedRequest: names the first field that is wrong. Unknown fields are too: a server that asks
            for more than this version knows, such as seeded noise, gets no answer.
        """
        for key in fields:
            if key not in _FIELDS:
                raise MalformedRequest(f"unknown key {_short(key)}")
        for key, kind in _FIELDS.items():
            if type(fields.get(key)) is not kind:
                raise MalformedRequest(f"{key} = {_short(fields.get(key))} must be of type {kind.__name__}")
        values: dict[str, Any] = dict(fields)
        if values["version"] != VERSION:
            raise MalformedRequest(f"version = {values['version']} is unknown; this node knows {VERSION}")
        if len(values["options"]) > _MAX_OPTIONS:
            raise MalformedRequest(f"options has {len(values['options'])} characters, above {_MAX_OPTIONS}")
        try:
            values["options"] = json.loads(values["options"])
            if not isinstance(values["options"], dict):
                raise ValueError("options must be an object")
            for key in ("client", "seed"):
                if not values[key].isdecimal() or len(values[key]) > 20:
                    raise ValueError(f"{key} = {_short(values[key])} must be a whole number")
                values[key] = int(values[key])
            values["clip"] = values["clip"] or None
            task = Task(**{key: values[key] for key in _OF_TASK})
            for key in ("alpha", "beta"):
                checks.real(key, values[key], 0.0, 1e6)
            checks.real("epsilon", values["epsilon"], 0.0, math.inf)
            checks.integer("bytes", values["bytes"], 1, 2**37)
            checks.integer("base", values["base"], -1, task.round)
            if len(values["types"]) > _MAX_ARRAYS or values["types"].strip(TYPES):
                raise ValueError(f"types = {_short(values['types'])} must be letters of {TYPES!r}")
            if not values["name"].isprintable() or not 1 <= len(values["name"]) <= 150:
                raise ValueError("name must be 1 to 150 printable characters")
            if len(values["model"]) != _HEX or not set(values["model"]) <= set("0123456789abcdef"):
                raise ValueError(f"model must be a digest of {_HEX} hexadecimal digits")
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(str(error)) from None
        return cls(task=task, **{key: values[key] for key in _OWN})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------- the model: at the server


def make_update(rate: float, reports: Sequence[tuple[Task, bytes, object]]) -> Update:
    """A round's accepted reports, for nodes that repeat the server's step; none: the model is unchanged."""
    return {
        "rate": rate,
        "bound": reports[0][0].bound if reports else 1.0,
        "clients": b"".join(_CLIENT.pack(task.client) for task, _, _ in reports),
        "reports": b"".join(message for _, message, _ in reports),
    }


def fields_size(fields: Mapping[str, object]) -> int:
    """Bytes of named plain values and their names; a number counts eight."""
    return sum(
        len(key) + (len(value) if isinstance(value, str | bytes) else 8) for key, value in fields.items()
    )


# ---------------------------------------------------------------- the model: at the node


@dataclass(frozen=True, kw_only=True)
class Download:
    """What comes with a request: the whole model, or an update of the one that the node keeps."""

    arrays: Callable[[], Arrays] | None = None
    """Reads the model; called only for a request that passed the checks before it."""
    update: Mapping[str, object] | None = None


def receive_model(
    download: Download,
    request: Request,
    held: tuple[int, Structure, Vector] | None,
    make_scheme: Callable[[Request], Scheme],
) -> tuple[Scheme, Structure, Vector]:
    """The round's scheme and model: the one downloaded, or the held one with its update.

    Args:
      held: the model that the node kept, and its round.
      make_scheme: makes the scheme or refuses; called once the model is known to have the stated size.

    Raises:
      MalformedRequest: the model is missing, or is not what the request states.
      ModelMissing: the node does not have the model that the update is of.
    """
    if request.base < 0:
        if download.arrays is None:
            raise MalformedRequest("the request has no model")
        try:
            structure, weights = flatten(download.arrays())
            structure = structure.typed(request.types)
        except ValueError as error:
            raise MalformedRequest(str(error)) from None
        if digest(weights) != request.model:
            raise MalformedRequest("the model does not have the digest that the request states")
        if structure.dim != request.task.dim:
            raise MalformedRequest(f"dim = {request.task.dim}, but the model has {structure.dim} weights")
        return make_scheme(request), structure, weights
    if download.arrays is not None:
        raise MalformedRequest("the request has both a model and an update: it must have one")
    if held is None or held[0] != request.base:
        raise ModelMissing(f"this node does not have the model of round {request.base} of {request.name!r}")
    _, structure, before = held
    if structure.dim != request.task.dim:
        raise ModelMissing(f"this node's model has {structure.dim} weights, not {request.task.dim}")
    scheme = make_scheme(request)
    try:
        if download.update is None:
            raise ValueError("there is none")
        structure = structure.typed(request.types)
        after = apply_update(download.update, scheme, request, before)
    except (KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        raise MalformedRequest(f"the update cannot be read: {error}") from None
    if digest(after) != request.model:
        raise ModelMissing("the update yields weights that differ from the server's")
    return scheme, structure, after


def apply_update(update: Mapping[str, object], scheme: Scheme, request: Request, before: Vector) -> Vector:
    """The weights after the previous round, from those before it."""
    clients, messages = _bytes(update, "clients"), _bytes(update, "reports")
    size, count = scheme.bits // 8, len(clients) // _CLIENT.size
    if len(messages) != size * count or len(clients) != _CLIENT.size * count:
        raise ValueError(f"{len(clients)} bytes of clients do not fit {len(messages)} bytes of reports")
    if not count:
        return before
    task = replace(request.task, round=request.base, bound=float(update["bound"]))  # type: ignore[arg-type]
    reports = [
        (replace(task, client=client), messages[i * size : (i + 1) * size], 1.0)
        for i, (client,) in enumerate(_CLIENT.iter_unpack(clients))
    ]
    settings = Settings(
        epsilon=request.epsilon, seed=request.task.seed, secure=True, lr=float(update["rate"]),  # type: ignore[arg-type]
        bound=1.0,
        decay="none", track=False,
    )  # fmt: skip
    state = State(round=request.base, weights=before, bound=1.0, optimizer={})
    return server_step(scheme, settings, state, reports)[0].weights


def _bytes(update: Mapping[str, object], key: str) -> bytes:
    value = update[key]
    if not isinstance(value, bytes):
        raise TypeError(f"{key} must be bytes")
    return value
