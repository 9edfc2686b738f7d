"""Gradients of single records, and their sum: what a guarantee per record is about."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, vmap

from sqsgd._internal import checks
from sqsgd.core import Scheme
from sqsgd.core.random import Keystream, PublicStream, Rng
from sqsgd.core.records import RecordSum
from sqsgd.core.task import Task
from sqsgd.learning.gradients import Losses, Rows, loss_gradient, of_batches, parameter_count
from sqsgd.learning.objectives import (
    Batch,
    Objective,
    class_scores,
    evaluating,
    find_objective,
    make_objective,
)
from sqsgd.learning.partition import Indices

_FLOATS, _MOST_TOGETHER = 1 << 22, 64
_MIXED = 1e-3  # relative: far more than rounding errors of a loss
_OfBatches = Callable[[torch.Tensor, torch.Tensor], tuple[Losses, Rows]]


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
    """Return the sum of the gradients of single records, each clipped to ``clip_norm``: what a silo encodes.

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
    total: RecordSum,
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    block: Indices | None = None,
    *,
    drops: bool = False,
) -> Losses:
    """Add the gradients of a batch's records, or their coordinates in ``block``. Returns the losses."""
    losses = [np.empty(0)]
    for found, rows in record_gradients(model, objective, batch, drops=drops):
        total.add(rows if block is None else rows[:, block])
        losses.append(found)
    return np.concatenate(losses)


def silo_sum(
    model: nn.Module,
    objective: Objective,
    count: int,
    take: Callable[[Indices], Batch],
    scheme: Scheme,
    task: Task,
    rng: Rng,
    *,
    key: bytes,
    normalise: bool = False,
    random: bool = False,
    drops: bool = False,
) -> tuple[Losses, RecordSum]:
    """Return the losses and the sum of the records that a silo draws for one report.

    ``take`` gives inputs and labels by their numbers below ``count``. ``rng`` draws the records, and then the
    noise; ``key`` is of the turns, if records take turns. ``random``: the model draws numbers, and torch is
    seeded by ``rng``. ``drops``: a record whose gradient fails is left out, as one with NaN is.
    """
    privacy = scheme.privacy
    if privacy.turns > 1:
        chosen = in_turn(count, privacy.turns, task.round, key)
    else:
        chosen = sampled(count, privacy.rate, rng)
    total = scheme.record_sum(task, normalise=normalise)
    with torch.random.fork_rng(devices=[], enabled=random):
        if random:
            torch.default_generator.manual_seed(rng.word() >> 1)
        losses = add_records(total, model, objective, take(chosen), scheme.block(task), drops=drops)
    return losses, total


def seeded_turns(seed: int, client: int) -> bytes:
    """Return the key of a simulated silo's turns. The account does not rest on its secrecy."""
    return PublicStream(seed=seed, round=0, client=client, purpose="batches").words(8).tobytes()


def record_gradients(
    model: nn.Module, objective: Objective, batch: Batch, *, drops: bool = False
) -> Iterator[tuple[Losses, Rows]]:
    """Losses and a gradient in each row, some records at a time; of a failing one NaN, if it ``drops``."""

    def alone(x: torch.Tensor, y: torch.Tensor) -> tuple[Losses, Rows]:
        value, row = loss_gradient(model, x, y, objective=objective)
        return np.array([value]), row[None]

    dim = parameter_count(model)
    size = max(1, min(_MOST_TOGETHER, _FLOATS // dim))
    failed = (np.full(1, np.nan), np.full((1, dim), np.nan, np.float32)) if drops else None
    return _by_record(of_batches(model, objective, randomness="different"), alone, batch, size, failed)


def correct_predictions(model: nn.Module, batch: Batch) -> Rows:
    """1 for each record whose largest class score is its label's, else 0; also where the model fails.

    What is found of a record does not depend on the others:
    tests/learning/test_records.py::test_a_prediction_does_not_depend_on_the_others.
    """
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (class_scores(lambda x: functional_call(model, weights, (x,)), x, y).argmax(-1) == y).float()

    def found(scored: torch.Tensor) -> tuple[Losses, Rows]:
        rows = scored.reshape(-1, 1).cpu().numpy()
        return np.empty(len(rows)), rows

    each = vmap(one, randomness="different")
    with evaluating(model), torch.no_grad():
        failed, one_by_one = found(torch.zeros(1)), lambda x, y: found(one(x, y))
        together = lambda x, y: found(each(x, y))  # noqa: E731
        parts = _by_record(together, one_by_one, batch, _MOST_TOGETHER, failed)
        return np.concatenate([np.empty((0, 1), np.float32), *(rows for _, rows in parts)])


def _by_record(
    each: _OfBatches, alone: _OfBatches, batch: Batch, size: int, failed: tuple[Losses, Rows] | None
) -> Iterator[tuple[Losses, Rows]]:
    """What a function of batches of one record gives; dummies fill the last part.

    Parts of one size are computed in one way, for any other records in the batch, also where one fails:
    tests/learning/test_records.py::test_a_records_gradient_does_not_depend_on_the_others.
    """
    inputs, labels = batch
    together = len(inputs) > 0 and _supported(each, batch)

    def part(places: torch.Tensor) -> tuple[Losses, Rows]:
        return each(inputs[places][:, None], labels[places][:, None])

    for start in range(0, len(inputs), size):
        count = min(size, len(inputs) - start)
        if together:
            try:
                values, rows = part(torch.arange(start, start + size).clamp(max=len(inputs) - 1))
                yield values[:count], rows[:count]
                continue
            except Exception:
                if failed is None:
                    raise
        for at in range(start, start + count):
            try:
                if together:
                    values, rows = part(torch.full((size,), at))
                    found = values[:1], rows[:1]
                else:
                    found = alone(inputs[at : at + 1], labels[at : at + 1])
            except Exception:
                if failed is None:
                    raise
                found = failed
            yield found


def _supported(each: _OfBatches, batch: Batch) -> bool:
    """Return whether vmap supports all of it, which no record decides: it is tried on zeros."""
    try:
        each(*(torch.zeros_like(part[:1])[:, None] for part in batch))
    except Exception:  # found again for each record
        return False
    return True


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


def tensors(model: nn.Module, inputs: Any, labels: Any) -> Batch:
    """Lists and arrays as tensors, and numbers of the model's own type: NumPy's are float64."""
    inputs, labels = torch.as_tensor(inputs), torch.as_tensor(labels)
    kind = next(model.parameters()).dtype
    return inputs.to(kind) if inputs.is_floating_point() else inputs, labels


def taken(inputs: Any, labels: Any, places: Indices) -> Batch:
    """Rows of arrays or tensors."""
    return torch.as_tensor(inputs[places]), torch.as_tensor(labels[places])


def made_up(inputs: Any, labels: Any) -> Batch:
    """Two records of the same form that depend on none of these: nor does a check then that fails."""
    x, y = taken(inputs, labels, np.zeros(2 if len(inputs) else 0, np.int64))
    if x.is_floating_point():
        x = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x.dtype)
    else:
        x = torch.zeros_like(x)
    return x, torch.zeros_like(y)


def sampled(count: int, rate: float, rng: Rng) -> Indices:
    """The records of one report: each with probability ``rate``, rounded down to a multiple of 2^-64."""
    if rate == 1:
        return np.arange(count)
    return np.flatnonzero(rng.words(count) < np.uint64(int(rate * 2.0**64)))


def in_turn(count: int, turns: int, round: int, key: bytes) -> Indices:
    """Return the records of one report where each is in one of ``turns``; every record draws its batch by
    itself.

    ``key``: the silo's own 32 bytes, the same for all rounds; batches are drawn again every ``turns`` rounds.
    """
    stream, words = Keystream(key, (round // turns).to_bytes(16, "big")), np.empty(count, "<u8")
    stream.fill(words.view(np.uint8))
    return np.flatnonzero(words % np.uint64(turns) == round % turns)
