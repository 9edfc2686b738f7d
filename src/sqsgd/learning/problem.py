"""A model and its data, partitioned over clients: what ``sqsgd.federated`` trains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sqsgd.checks import Vector
from sqsgd.learning.client_gradients import (
    Losses,
    Rows,
    batched,
    batched_gradients,
    head_gradients,
    linear_head,
)
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.gradients import (
    evaluate,
    get_flat,
    loss_gradient,
    loss_gradients,
    parameter_count,
    prepare_torch,
    set_flat,
)
from sqsgd.learning.partition import Indices, Parts, batch_indices, cohort, partition
from sqsgd.randomness import PublicStream

_AHEAD = 64
"""Clients of a linear model whose gradients are computed before the first is used."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningProblem:
    """Cross-silo: every client uses a batch in each round. Cross-device: a random cohort uses all its data.

    ``participants`` is None for cross-silo, else the cohort size. With ``minibatch`` a cohort uses a batch of
    its data.
    """

    dataset: Dataset
    model: nn.Module
    parts: Parts
    batch: int
    participants: int | None
    seed: int
    workers: int = 1
    minibatch: bool = False
    random: bool = False
    """The model draws random numbers (dropout): clients run one at a time, each with its own seed."""

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return parameter_count(self.model)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.parts)

    def initial(self) -> Vector:
        """The model's current weights."""
        return get_flat(self.model)

    def size(self, client: int) -> int:
        """The number of a client's examples."""
        return len(self.parts[client])

    def cohort(self, round: int) -> list[int]:
        """All clients, or this round's cohort."""
        if self.participants is None:
            return list(range(self.clients))
        return [int(client) for client in cohort(self.clients, self.participants, round, self.seed)]

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        """Each client's mean loss and gradient over its batch."""
        set_flat(self.model, weights)
        if self._head is not None:
            for start in range(0, len(cohort), _AHEAD):
                losses, rows = self.gradient_rows(weights, round, np.asarray(cohort[start : start + _AHEAD]))
                yield from zip(losses.tolist(), rows, strict=True)
        elif self.random:
            for client, (inputs, labels) in zip(cohort, self._batches(round, cohort), strict=True):
                yield loss_gradient(self.model, inputs, labels, seed=self._torch_seed(round, client))
        else:
            yield from loss_gradients(self.model, self._batches(round, cohort), workers=self.workers)

    def gradient_rows(self, weights: Vector, round: int, cohort: Indices) -> tuple[Losses, Rows]:
        """The same for many clients at once: their losses, and a gradient in each row.

        For a linear model the rows are those of ``gradients``, bit for bit.
        """
        set_flat(self.model, weights)
        chosen, bounds = self._chosen(round, cohort)
        if self._head is not None:
            return head_gradients(self._head, self.dataset, chosen, bounds, workers=self.workers)
        if not self.random and batched(self.model, self.dataset, bounds):
            return batched_gradients(self.model, self.dataset, chosen, bounds)
        losses, rows = np.empty(len(cohort)), np.empty((len(cohort), self.dim), np.float32)
        for i, (loss, gradient) in enumerate(self.gradients(weights, round, cohort.tolist())):
            losses[i], rows[i] = loss, gradient
        return losses, rows

    @cached_property
    def _head(self) -> nn.Linear | None:
        """The model's only layer, if it is a softmax on the inputs themselves."""
        return linear_head(self.model)

    def _chosen(self, round: int, cohort: Indices) -> tuple[Indices, Indices]:
        """The positions of the clients' examples, and where those of each client begin; the end, last."""
        if self.participants is not None and not self.minibatch:
            return self.parts.together(cohort)
        each = [batch_indices(self.parts[c], self.batch, round, c, self.seed) for c in cohort.tolist()]
        return np.concatenate(each), np.append(0, np.cumsum([len(chosen) for chosen in each]))

    def _batches(self, round: int, cohort: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        chosen, bounds = self._chosen(round, np.asarray(cohort))
        for start, stop in itertools.pairwise(bounds):
            one = chosen[start:stop]
            yield self.dataset.train_inputs[one], self.dataset.train_labels[one]

    def _torch_seed(self, round: int, client: int) -> int:
        stream = PublicStream(seed=self.seed, round=round, client=client, purpose="model")
        return int.from_bytes(stream.words(2).tobytes(), "little") >> 1

    def named_weights(self, weights: Vector) -> dict[str, npt.NDArray[np.generic]]:
        """The model's state dict with these weights, untrained values included."""
        set_flat(self.model, weights)
        return {name: value.numpy().copy() for name, value in self.model.state_dict().items()}

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Accuracy and loss on the held-out examples."""
        set_flat(self.model, weights)
        inputs, labels = self.dataset.test_inputs, self.dataset.test_labels
        return evaluate(self.model, inputs, labels, workers=self.workers)


def make_problem(
    dataset: Dataset,
    model: nn.Module,
    *,
    clients: int,
    partition_scheme: str,
    batch: int,
    participants: int | None,
    seed: int,
    workers: int,
    minibatch: bool = False,
) -> LearningProblem:
    """Partition the training data over the clients, and check that the model fits it."""
    prepare_torch()
    few = [int(dataset.train_labels.argmax()), *range(min(batch, 3))]  # includes the largest label
    random = draws_randomness(model, dataset.train_inputs[few], dataset.train_labels[few])
    parts = partition(dataset.train_labels.numpy(), clients, partition_scheme, seed)
    return LearningProblem(
        dataset=dataset,
        model=model,
        parts=parts,
        batch=batch,
        participants=participants,
        seed=seed,
        workers=workers,
        minibatch=minibatch,
        random=random,
    )


def draws_randomness(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether the gradient depends on torch's generator (dropout); ValueError if the model cannot be trained.

    Buffers that change with a batch are rejected: they would store clients' data without protection.
    """
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        gradients = [loss_gradient(model, inputs, labels, seed=seed)[1] for seed in (1, 2)]
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"the model does not fit the data (inputs of shape {tuple(inputs.shape[1:])} and type "
            f"{inputs.dtype}, labels up to {int(labels.max())}): {' '.join(str(error).split())}"
        ) from error
    for name, buffer in model.named_buffers():
        if not torch.equal(before[name], buffer):
            raise ValueError(
                f"the model's buffer {name!r} changes with each batch: it would store the clients' data "
                "without protection; use layers without running state"
            )
    return gradients[0].tobytes() != gradients[1].tobytes()
