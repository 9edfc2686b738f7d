"""Privacy per record at a node: an app names its records, and the node alone decides which of them count.

The node draws the batch from secret randomness, computes and clips each record's gradient, adds noise and
sends. An app that does not call ``sum_records`` in its task, or from another thread, has a report of noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.core.random import Rng
from sqsgd.core.records import RecordSum
from sqsgd.federation.node.request import EVALUATION, TRAINING, Request
from sqsgd.federation.node.structure import Structure
from sqsgd.privacy.record_plan import record_warnings


@dataclass(kw_only=True)
class Asked:
    """A sum that was asked for and paid for, and what the node's owner may know about it."""

    request: Request
    scheme: Scheme
    structure: Structure
    weights: Vector
    rng: Rng
    turns: dict[str, str] = field(default_factory=dict)
    """Where records take turns: the ``key``, and a digest of the ``data`` with which this turn began."""
    warn: Any = None
    total: RecordSum | None = None


_ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)


@contextlib.contextmanager
def asking(asked: Asked) -> Iterator[None]:
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def asked_for_records() -> bool:
    """Return whether the task under way is about a sum of records: the app's own reply is then not used."""
    return _ASKED.get() is not None


def sum_records(
    model: Any, loss: Any, inputs: Any, labels: Any, *, random: bool = False
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Add up the gradients of the records that the node draws: all that an app does for a report.

    The weights of the round are put into ``model``. A record whose gradient is not finite, or fails, is left
    out, and nobody is told but the node's owner.

    Args:
        model: A module without layers that mix records; its trainable parameters are what is asked for.
        loss: As for ``sqsgd.record_sum``.
        inputs: All of the node's records, in rows of an array or tensor.
        labels: Their labels.
        random: The model draws numbers, which a simulation repeats.

    Returns:
        The losses of the drawn records, which must not leave the node.

    Raises:
        ValueError: No such report is asked for, the model is another one, or model or loss mix records.
    """
    from sqsgd.learning import records
    from sqsgd.learning.objectives import Objective, find_objective, make_objective

    asked, (inputs, labels) = _asked(TRAINING, model, inputs, labels), records.tensors(model, inputs, labels)
    if not isinstance(loss, Objective):
        loss = find_objective(loss) if isinstance(loss, str) else make_objective("your loss", loss)
    records.check_records(model, loss, records.made_up(inputs, labels))
    if asked.scheme.privacy.turns > 1:
        data = _digest(inputs, labels)
        if asked.turns.setdefault("data", data) != data:
            raise ValueError("the records, or their order, differ from those that the turn began with")
    take = partial(records.taken, inputs, labels)
    losses, asked.total = records.silo_sum(
        model, loss, len(inputs), take, asked.scheme, asked.request.task, asked.rng,
        key=bytes.fromhex(asked.turns.get("key", "")), normalise=asked.request.normalise, random=random,
        drops=True,
    )  # fmt: skip
    return losses


def count_correct(model: Any, inputs: Any, labels: Any) -> None:
    """Count the records whose largest class score is their label's, for an evaluation.

    Args:
        model: A classifier; the weights of the round are put into it.
        inputs: All records to measure on, in rows of an array or tensor.
        labels: Their classes.

    Raises:
        ValueError: No evaluation is asked for, the model is another one, or it mixes records.
    """
    from sqsgd.learning import records

    asked, (inputs, labels) = (
        _asked(EVALUATION, model, inputs, labels),
        records.tensors(model, inputs, labels),
    )
    total = asked.scheme.record_sum(asked.request.task)
    total.add(records.correct_predictions(model, records.taken(inputs, labels, np.arange(len(inputs)))))
    asked.total = total


def _asked(purpose: str, model: Any, inputs: Any, labels: Any) -> Asked:
    """What is asked for, once its weights are in the model."""
    from sqsgd.learning.gradients import set_flat

    asked = _ASKED.get()
    if asked is None or asked.request.purpose != purpose:
        where = "call this in the app's own function for it, with unit = 'record' at the server"
        raise ValueError(f"no {purpose} per record is asked for: {where}")
    if asked.total is not None:
        raise ValueError("a report is of one sum of records, and this app makes two")
    if len(inputs) != len(labels):
        raise ValueError(f"{len(inputs):,} inputs have {len(labels):,} labels")
    own = {name: tuple(each.shape) for name, each in model.named_parameters() if each.requires_grad}
    sent = dict(asked.structure.shapes)
    if [*own.items()] != [*sent.items()] and len(sent) > 1:
        differing = ", ".join(sorted(map(str, {*own.items()} ^ {*sent.items()}))[:4]) or "their order"
        raise ValueError(f"the arrays sent are not the model's trainable parameters: {differing}")
    set_flat(model, asked.weights)
    privacy, count = asked.scheme.privacy, max(1, len(inputs))
    for warning in record_warnings(count, count * privacy.share, privacy.delta):
        asked.warn(warning)
    if len(inputs) < (expected := math.floor(asked.scheme.mechanism.traits.records)):
        asked.warn(
            f"this node has {len(inputs):,} records, fewer than the batch of {expected:,} by which "
            "the server divides sums: its part of a step is so much shorter"
        )
    return asked


def _digest(inputs: Any, labels: Any) -> str:
    content = hashlib.blake2b(digest_size=16)
    for part in (inputs, labels):
        content.update(np.asarray(part).tobytes())
    return content.hexdigest()
