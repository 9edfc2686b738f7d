"""The way down: the whole model, or what changed since the round before, whichever is smaller.

A node that answered the round before holds its model. It receives that round's accepted reports, does the
server's step with the server's own code, and arrives at the server's weights; a digest in the request proves
it. Where the changed weights themselves are fewer bytes than the reports, they are sent instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from sqsgd import federated
from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.federated import Settings, State
from sqsgd.federated.optimizers import Optimizer
from sqsgd.flower import wire
from sqsgd.flower.wire import MalformedRequest, Request, Structure
from sqsgd.node.node_state import Kept
from sqsgd.task import Task

_ENTRY = struct.Struct("<Q")


class ModelMissing(Exception):
    """The node does not hold the model that a difference starts from."""


# ---------------------------------------------------------------- the server's side


def reports_record(rate: float, reports: Sequence[tuple[Task, bytes, float]]) -> ConfigRecord:
    """A round's accepted reports, for nodes that repeat the server's step."""
    tasks = [task for task, _, _ in reports]
    return ConfigRecord(
        {
            "kind": "reports",
            "rate": rate,
            "bound": tasks[0].bound,
            "clients": b"".join(_ENTRY.pack(task.client) for task in tasks),
            "reports": b"".join(message for _, message, _ in reports),
        }
    )


def changes_record(before: Vector, after: Vector) -> ConfigRecord:
    """The weights that changed, as they are now."""
    changed = np.flatnonzero(before.view(np.uint32) != after.view(np.uint32)).astype("<u4")
    return ConfigRecord(
        {"kind": "changes", "places": changed.tobytes(), "values": after[changed].astype("<f4").tobytes()}
    )


def smallest_update(
    rate: float, reports: Sequence[tuple[Task, bytes, float]], before: Vector, after: Vector
) -> ConfigRecord | None:
    """What leads from the model before to the one after in the fewest bytes; None: the model itself does."""
    choices = [changes_record(before, after)]
    if reports:
        choices.append(reports_record(rate, reports))
    best = min(choices, key=wire.payload_size)
    return best if wire.payload_size(best) < after.nbytes else None


# ---------------------------------------------------------------- the node's side


def model_of(
    content: RecordDict, request: Request, kept: Kept | None, allowed: Callable[[Request], Scheme]
) -> tuple[Scheme, Structure, Vector]:
    """The round's scheme and model: from the message, or from the kept one and what changed since.

    ``allowed`` makes the scheme, or refuses; it is asked once the model's size is known to be the stated one.
    """
    if request.base < 0:
        if wire.MODEL not in content.array_records:
            raise MalformedRequest(f"there is no ArrayRecord {wire.MODEL!r}: the request has no model")
        record: ArrayRecord = content.array_records[wire.MODEL]
        try:
            structure, weights = wire.take_apart(record)
        except ValueError as error:
            raise MalformedRequest(str(error)) from None
        if wire.digest(weights) != request.model:
            raise MalformedRequest("the model is not the one whose digest the request states")
        if structure.dim != request.task.dim:
            raise MalformedRequest(f"dim = {request.task.dim}, but the model has {structure.dim} weights")
        return allowed(request), structure, weights
    if wire.MODEL in content:
        raise MalformedRequest(f"there is a record {wire.MODEL!r} beside the update: which one is the model?")
    if kept is None or kept.model is None or kept.round != request.base:
        raise ModelMissing(f"round {request.base} of {request.name!r} is not at hand")
    structure, before = kept.model
    if structure.dim != request.task.dim:
        raise ModelMissing(f"the model at hand has {structure.dim} weights, not {request.task.dim}")
    scheme = allowed(request)
    try:
        after = apply_update(content.config_records[wire.UPDATE], scheme, request, before)
    except (KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        raise MalformedRequest(f"the update cannot be read: {error}") from None
    if wire.digest(after) != request.model:
        raise ModelMissing("the update leads to other weights than the server's")
    return scheme, structure, after


def apply_update(update: ConfigRecord, scheme: Scheme, request: Request, before: Vector) -> Vector:
    """The weights after the round before this one, from those before it."""
    if update["kind"] == "changes":
        places = np.frombuffer(_content(update, "places"), "<u4")
        values = np.frombuffer(_content(update, "values"), "<f4")
        after = before.copy()
        after[places] = values
        return after
    clients, messages = _content(update, "clients"), _content(update, "reports")
    size, count = scheme.bits // 8, len(clients) // _ENTRY.size
    if not count or len(messages) != size * count or len(clients) != _ENTRY.size * count:
        raise ValueError(f"{len(clients)} bytes of clients and {len(messages)} of reports do not fit")
    reports = []
    for i in range(count):
        task = Task(
            round=request.base,
            client=_ENTRY.unpack_from(clients, i * _ENTRY.size)[0],
            seed=request.task.seed,
            dim=request.task.dim,
            bound=float(update["bound"]),  # type: ignore[arg-type]
            clip=request.task.clip,
        )
        reports.append((task, messages[i * size : (i + 1) * size], 1.0))
    settings = Settings(
        seed=request.task.seed,
        optimizer=Optimizer(kind="sgd", rate=float(update["rate"])),  # type: ignore[arg-type]
        track=False,
    )
    state = State(round=request.base, weights=before, bound=1.0, optimizer={})
    return federated.server_step(scheme, settings, state, reports)[0].weights


def _content(record: ConfigRecord, key: str) -> bytes:
    value = record[key]
    if not isinstance(value, bytes):
        raise TypeError(f"{key} must be bytes")
    return value
