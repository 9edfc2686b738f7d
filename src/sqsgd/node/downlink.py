"""The downlink: the whole model, or an update of the previous round's, whichever is smaller.

A node that answered the previous round holds its model. It receives that round's accepted reports, repeats
the server's step with the server's own code, and arrives at the server's weights; a digest in the request
proves it. Where the changed weights themselves are fewer bytes than the reports, they are sent instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sqsgd import training
from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.node.node_state import Kept
from sqsgd.node.request import MalformedRequest, Request
from sqsgd.node.structure import Arrays, Structure, digest, flatten
from sqsgd.task import Task
from sqsgd.training import Settings, State

Update: TypeAlias = dict[str, str | float | bytes]
_ENTRY = struct.Struct("<Q")


class ModelMissing(Exception):
    """The node does not hold the model that an update starts from."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """What comes with a request: the whole model, or an update of the one that the node keeps."""

    arrays: Callable[[], Arrays] | None = None
    """Reads the model; called only for a request that passed the checks before it."""
    update: Mapping[str, object] | None = None


# ---------------------------------------------------------------- at the server


def reports_update(rate: float, reports: Sequence[tuple[Task, bytes, float]]) -> Update:
    """A round's accepted reports, for nodes that repeat the server's step."""
    tasks = [task for task, _, _ in reports]
    return {
        "kind": "reports",
        "rate": rate,
        "bound": tasks[0].bound,
        "clients": b"".join(_ENTRY.pack(task.client) for task in tasks),
        "reports": b"".join(message for _, message, _ in reports),
    }


def changes_update(before: Vector, after: Vector) -> Update:
    """The weights that changed, with their new values."""
    changed = np.flatnonzero(before.view(np.uint32) != after.view(np.uint32)).astype("<u4")
    return {"kind": "changes", "places": changed.tobytes(), "values": after[changed].astype("<f4").tobytes()}


def smallest_update(
    rate: float, reports: Sequence[tuple[Task, bytes, float]], before: Vector, after: Vector
) -> Update | None:
    """The update with the fewest bytes; None where the whole model is smaller."""
    choices = [changes_update(before, after)]
    if reports:
        choices.append(reports_update(rate, reports))
    best = min(choices, key=fields_size)
    return best if fields_size(best) < after.nbytes else None


def fields_size(fields: Mapping[str, object]) -> int:
    """Bytes of named plain values and their names; a number counts eight."""
    return sum(
        len(key) + (len(value) if isinstance(value, str | bytes) else 8) for key, value in fields.items()
    )


# ---------------------------------------------------------------- at the node


def receive_model(
    download: Download, request: Request, kept: Kept | None, make_scheme: Callable[[Request], Scheme]
) -> tuple[Scheme, Structure, Vector]:
    """The round's scheme and model: the one downloaded, or the kept one with its update.

    ``make_scheme`` makes the scheme or refuses; it is called once the model is known to have the stated size.
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
    if kept is None or kept.model is None or kept.round != request.base:
        raise ModelMissing(f"this node does not have the model of round {request.base} of {request.name!r}")
    structure, before = kept.model
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
    if update["kind"] == "changes":
        places = np.frombuffer(_bytes(update, "places"), "<u4")
        values = np.frombuffer(_bytes(update, "values"), "<f4")
        after = before.copy()
        after[places] = values
        return after
    clients, messages = _bytes(update, "clients"), _bytes(update, "reports")
    size, count = scheme.bits // 8, len(clients) // _ENTRY.size
    if not count or len(messages) != size * count or len(clients) != _ENTRY.size * count:
        raise ValueError(f"{len(clients)} bytes of clients do not fit {len(messages)} bytes of reports")
    task = replace(request.task, round=request.base, bound=float(update["bound"]))  # type: ignore[arg-type]
    reports = [
        (replace(task, client=client), messages[i * size : (i + 1) * size], 1.0)
        for i, (client,) in enumerate(_ENTRY.iter_unpack(clients))
    ]
    settings = Settings(
        epsilon=request.epsilon,
        seed=request.task.seed,
        lr=float(update["rate"]),  # type: ignore[arg-type]
        track=False,
        secure=True,
    )
    state = State(round=request.base, weights=before, bound=1.0, optimizer={})
    return training.server_step(scheme, settings, state, reports)[0].weights


def _bytes(update: Mapping[str, object], key: str) -> bytes:
    value = update[key]
    if not isinstance(value, bytes):
        raise TypeError(f"{key} must be bytes")
    return value
