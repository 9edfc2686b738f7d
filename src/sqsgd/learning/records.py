"""Gradients of single records, and their sum: what a guarantee per record is about."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from sqsgd._internal import checks
from sqsgd.core import Scheme
from sqsgd.core.random import Keystream, Rng
from sqsgd.core.records import RecordSum
from sqsgd.core.task import Task
from sqsgd.learning.gradients import Losses, Rows, loss_gradient, of_batches, parameter_count
from sqsgd.learning.objectives import Batch, Objective, evaluating, find_objective, make_objective
from sqsgd.learning.partition import Indices

_FLOATS, _MOST_TOGETHER = 1 << 22, 64
_MIXED = 1e-3  # relative: far more than rounding errors of a loss


def record_sum(
    model: nn.Module,
    loss: Any,
    batch: Any,
    clip_norm: float,
    *,
    normalise: bool = False,
    scheme: Scheme | None = None,
    task: Task | None = None,
) -> RecordSum:
    """The sum of the gradients of single records, each clipped to ``clip_norm``: what a silo encodes.

    A record is an input with its label. Its gradient belongs to the loss of a batch of one, for the trainable
    parameters in the order of ``model.parameters()``. Memory is bounded: few records are computed at once.

    Args:
        model: Any module without layers that mix records.
        loss: ``cross-entropy``, ``squared-error``, ``multi-label``, ``package.module:name``, or a function of
            (model, batch); the mean over a batch, or the sum.
        batch: Inputs and labels; may be empty.
        clip_norm: C, the l2 norm that a record's gradient is clipped to.
        normalise: Scale every gradient to nearly C, also shorter ones (automatic clipping).
        scheme: With a task: the sum holds the coordinates that the scheme sends in its round.
        task: Its bound is C.

    Returns:
        A sum for ``scheme.encode``. Gradients with NaN or infinity are skipped and counted in ``dropped``.

    Raises:
        ValueError: A layer or the loss mixes records, or ``clip_norm`` is not above 0.

    >>> from torch.nn import Linear
    >>> inputs, labels = torch.eye(3), torch.tensor([0, 1, 1])
    >>> record_sum(Linear(3, 2), "cross-entropy", (inputs, labels), clip_norm=1.0).dim
    8
    """
    checks.positive("clip_norm", clip_norm)
    objective = find_objective(loss) if isinstance(loss, str) else make_objective("your loss", loss)
    check_records(model, objective, (batch[0][:2], batch[1][:2]))
    if scheme is None or task is None:
        total, block = RecordSum(parameter_count(model), clip_norm, normalise=normalise), None
    else:
        total, block = scheme.record_sum(task, normalise=normalise), scheme.block(task)
        if total.clip_norm != clip_norm:
            raise ValueError(f"clip_norm = {clip_norm!r} must be the task's bound, {total.clip_norm!r}")
    add_records(total, model, objective, batch, block)
    return total


def add_records(
    total: RecordSum, model: nn.Module, objective: Objective, batch: Batch, block: Indices | None = None
) -> Losses:
    """Add the gradients of a batch's records, or their coordinates in ``block``; returns the losses."""
    losses = [np.empty(0)]
    for found, rows in record_gradients(model, objective, batch):
        total.add(rows if block is None else rows[:, block])
        losses.append(found)
    return np.concatenate(losses)


def record_gradients(model: nn.Module, objective: Objective, batch: Batch) -> Iterator[tuple[Losses, Rows]]:
    """Losses and a gradient in each row, some records at a time; dummies fill the last part.

    Parts of one size are computed in one way, for any other records in the batch:
    tests/learning/test_records.py::test_a_records_gradient_does_not_depend_on_the_others.
    """
    inputs, labels = batch
    size = max(1, min(_MOST_TOGETHER, _FLOATS // parameter_count(model)))
    each, together = of_batches(model, objective, randomness="different"), True
    for start in range(0, len(inputs), size):
        places = torch.arange(start, start + size).clamp(max=len(inputs) - 1)
        count = min(size, len(inputs) - start)
        if together:
            try:
                values, rows = each(inputs[places][:, None], labels[places][:, None])
            except RuntimeError:  # something that vmap does not support
                together = False
            else:
                yield values[:count], rows[:count]
                continue
        for at in range(start, start + count):
            value, row = loss_gradient(model, inputs[at : at + 1], labels[at : at + 1], objective=objective)
            yield np.array([value]), row[None]


def check_records(model: nn.Module, objective: Objective, some: Batch) -> None:
    """Raise ValueError if a layer, or the loss of ``some`` records, depends on several records at once."""
    for path, module in model.named_modules():
        mixes = module.training or getattr(module, "running_mean", None) is None
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and mixes:
            raise ValueError(
                f"layer {path!r} ({type(module).__name__}) mixes the records of a batch, so no record has a "
                "gradient of its own; use GroupNorm"
            )
    if len(some[0]) < 2:
        return
    with evaluating(model), torch.no_grad():
        ones = [objective.loss(model, (some[0][i : i + 1], some[1][i : i + 1])).item() for i in (0, 1)]
        both = objective.loss(model, (some[0][:2], some[1][:2])).item()
    near = _MIXED * (abs(ones[0]) + abs(ones[1])) + 1e-6
    if not min(abs(both - sum(ones) / 2), abs(both - sum(ones))) <= near and np.isfinite([both, *ones]).all():
        raise ValueError(
            f"loss {objective.name!r} mixes records: two together give {both:.6g}, alone {ones[0]:.6g} and "
            f"{ones[1]:.6g}; it must be the mean, or the sum, of the losses of single records"
        )


def sampled(count: int, rate: float, rng: Rng) -> Indices:
    """The records of one report: each with probability ``rate``, rounded down to a multiple of 2^-64."""
    if rate == 1:
        return np.arange(count)
    return np.flatnonzero(rng.words(count) < np.uint64(int(rate * 2.0**64)))


def in_turn(count: int, turns: int, round: int, key: bytes) -> Indices:
    """The records of one report where each is in one of ``turns``; every record draws its batch by itself.

    ``key``: the silo's own 32 bytes, the same for all rounds; batches are drawn again every ``turns`` rounds.
    """
    stream, words = Keystream(key, (round // turns).to_bytes(16, "big")), np.empty(count, "<u8")
    stream.fill(words.view(np.uint8))
    return np.flatnonzero(words % np.uint64(turns) == round % turns)
