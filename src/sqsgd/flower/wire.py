"""What travels between server and node: the names of the records, the request, and a model as one vector.

Down: a request (one ConfigRecord), the model (an ArrayRecord) or what changed since the last round (a
ConfigRecord), and the app's own configuration. Up: one ConfigRecord with one ``bytes`` payload, or an error
with one of the fixed reasons below.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.schemes import make_scheme
from sqsgd.task import Task

REQUEST = "sqsgd.request"
UPDATE = "sqsgd.update"
REPORT = "sqsgd.report"
PAYLOAD = "payload"
MODEL = "arrays"  # where Flower's own strategies put the model
CONFIG = "config"  # and their configuration
GRADIENT = "gradient"  # an ArrayRecord of this name in an app's reply is a gradient, not a model

VERSION = 1
LONGEST_OPTIONS = 4096
DIGEST_BYTES = 16
HEX = 2 * DIGEST_BYTES

FAILED = "the node failed; its own log says why"
NEEDS_MODEL = "the node needs the whole model"
NOT_ALLOWED = "the node refused: its owner does not allow this"
MALFORMED = "the node refused: the request is malformed"
ANSWERED = "the node refused: the round was answered before"
SPENT = "the node refused: its privacy budget is spent"
LEDGER = "the node refused: its ledger does not allow it"
ANSWERS = (FAILED, NEEDS_MODEL, NOT_ALLOWED, MALFORMED, ANSWERED, SPENT, LEDGER)
"""All that a node ever says in place of a report: none depends on data, the details are in its own log."""
UNPAID = (NEEDS_MODEL, NOT_ALLOWED, MALFORMED, SPENT, LEDGER)
"""After these a node has spent nothing on the round."""


class MalformedRequest(ValueError):
    """A request that no server of ours sends."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the server asks of one node in one round. All of it is public, and none of it is trusted."""

    name: str
    """Names the training: its rounds are answered once each."""
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
    """The round whose model the node must hold; -1: the whole model is in the message."""
    keep: bool = False
    """The next round may come as a difference: keep the model."""

    def make_scheme(self) -> Scheme:
        """The scheme that the request names, made here from its parts."""
        return make_scheme(
            self.scheme, dim=self.task.dim, epsilon=self.epsilon, bits=self.bits, **self.options
        )

    @property
    def identity(self) -> str:
        """A digest of all that a report depends on: equal requests may have equal answers."""
        parts = (self.name, self.scheme, self.fingerprint, self.alpha, self.beta, self.model)
        content = self.task.binding + repr(parts).encode()
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def request_record(request: Request) -> ConfigRecord:
    """The request as one record."""
    task = request.task
    return ConfigRecord(
        {
            "version": VERSION,
            "name": request.name,
            "scheme": request.scheme,
            "epsilon": request.epsilon,
            "bits": request.bits,
            "options": json.dumps(dict(request.options)),
            "fingerprint": request.fingerprint,
            "round": task.round,
            "client": str(task.client),  # Flower's integers are signed
            "seed": str(task.seed),
            "dim": task.dim,
            "bound": task.bound,
            "clip": task.clip or 0.0,
            "alpha": request.alpha,
            "beta": request.beta,
            "model": request.model,
            "base": request.base,
            "keep": request.keep,
        }
    )


_TYPES: Mapping[str, type] = {
    "version": int, "name": str, "scheme": str, "epsilon": float, "bits": int, "options": str,
    "fingerprint": int, "round": int, "client": str, "seed": str, "dim": int, "bound": float, "clip": float,
    "alpha": float, "beta": float, "model": str, "base": int, "keep": bool,
}  # fmt: skip


def read_request(record: object) -> Request:
    """The request of a record; raises MalformedRequest naming the first thing that is wrong.

    Keys that are not known are refused too: a server that asks for more than this program knows, such as
    noise from a seed, gets no answer.
    """
    if not isinstance(record, ConfigRecord):
        raise MalformedRequest(f"there is no ConfigRecord {REQUEST!r}: the server does not use SqsgdStrategy")
    for key in record:
        if key not in _TYPES:
            raise MalformedRequest(f"unknown key {key!r}")
    for key, kind in _TYPES.items():
        if type(record.get(key)) is not kind:
            raise MalformedRequest(f"{key} = {_short(record.get(key))} must be of type {kind.__name__}")
    values: dict[str, Any] = dict(record)
    if values["version"] != VERSION:
        raise MalformedRequest(f"version = {values['version']} is unknown; this program knows {VERSION}")
    if len(values["options"]) > LONGEST_OPTIONS:
        raise MalformedRequest("the options are too long")
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
        if len(values["model"]) != HEX or not set(values["model"]) <= set("0123456789abcdef"):
            raise ValueError(f"model must be a digest of {HEX} hexadecimal digits")
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(str(error)) from None
    kept = ("name", "scheme", "epsilon", "bits", "fingerprint", "alpha", "beta", "model", "base", "keep")
    return Request(task=task, options=options, **{key: values[key] for key in kept})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------- a model as one vector


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Names and shapes of a model's arrays, in order. Arrays that hold no floats are constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, npt.NDArray[Any]]
    order: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Numbers in all float arrays together."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def record(self, weights: Vector) -> ArrayRecord:
        """The arrays of a vector."""
        arrays, start = {}, 0
        for name in self.order:
            if name in self.constants:
                arrays[name] = Array(self.constants[name])
                continue
            stop = start + math.prod(self.shapes[name])
            # ascontiguousarray would make an array of one number out of a number
            arrays[name] = Array(np.array(weights[start:stop].reshape(self.shapes[name]), order="C"))
            start = stop
        return ArrayRecord(arrays)

    def vector(self, record: ArrayRecord) -> Vector:
        """The float arrays of a record with these very names and shapes, as one vector in this order."""
        parts = []
        if set(record) - set(self.constants) != set(self.shapes):
            differing = sorted(set(self.shapes) ^ (set(record) - set(self.constants)))
            raise ValueError(f"the arrays have other names than the model's: {', '.join(differing[:5])}")
        for name, shape in self.shapes.items():
            array = record[name].numpy()
            if array.dtype != np.float32 or array.shape != shape:
                raise ValueError(
                    f"array {name!r} is {array.dtype} {array.shape}; the model's is float32 {shape}"
                )
            parts.append(array.reshape(-1))
        return np.concatenate(parts)


def take_apart(record: ArrayRecord) -> tuple[Structure, Vector]:
    """A model's structure and its weights as one float32 vector."""
    arrays = {name: array.numpy() for name, array in record.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and array.dtype != np.float32):
            raise ValueError(f"array {name!r} is {array.dtype}: a model's weights must be float32")
    structure = Structure(
        shapes={name: array.shape for name, array in arrays.items() if array.dtype.kind == "f"},
        constants={name: array for name, array in arrays.items() if array.dtype.kind != "f"},
        order=tuple(arrays),
    )
    if not structure.dim:
        raise ValueError("the model has no float32 array: there is nothing to train")
    return structure, np.concatenate([arrays[name].reshape(-1) for name in structure.shapes])


def digest(weights: Vector) -> str:
    """A digest of the weights' bits."""
    return hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=DIGEST_BYTES).hexdigest()


def payload_size(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    """Bytes of a record's values and their names, before anything is wrapped around them."""
    if not isinstance(record, ConfigRecord):
        return record.count_bytes()
    # Flower's own count refuses empty bytes.
    return sum(
        len(key) + (len(value) if isinstance(value, str | bytes) else 8) for key, value in record.items()
    )


def serialised_size(message: Message) -> int:
    """Bytes of a message as Flower serialises it: the message and each object in it; no transport."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def report_record(payload: bytes) -> ConfigRecord:
    """A node's whole answer."""
    return ConfigRecord({PAYLOAD: payload})
