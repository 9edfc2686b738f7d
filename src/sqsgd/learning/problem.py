"""A model and its data, partitioned over clients: what ``sqsgd.federated`` trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sqsgd.checks import Vector
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
from sqsgd.learning.partition import batch_indices, cohort, once_cohort, partition
from sqsgd.randomness import PublicStream


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningProblem:
    """Cross-silo: every client uses a batch in each round. Cross-device: a random cohort uses all its data.

    ``participants`` is None for cross-silo, else the cohort size; with ``once`` no client takes part twice.
    """

    dataset: Dataset
    model: nn.Module
    parts: Sequence[npt.NDArray[np.int64]]
    batch: int
    participants: int | None
    seed: int
    workers: int = 1
    once: bool = False
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
        draw = once_cohort if self.once else cohort
        return [int(client) for client in draw(self.clients, self.participants, round, self.seed)]

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        """Each client's mean loss and gradient over its batch."""
        set_flat(self.model, weights)

        def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for client in cohort:
                chosen = self.parts[client]
                if self.participants is None:
                    chosen = batch_indices(chosen, self.batch, round, client, self.seed)
                yield self.dataset.train_inputs[chosen], self.dataset.train_labels[chosen]

        if self.random:
            seeds = [self._torch_seed(round, client) for client in cohort]
            return (
                loss_gradient(self.model, inputs, labels, seed=seed)
                for seed, (inputs, labels) in zip(seeds, batches(), strict=True)
            )
        return loss_gradients(self.model, batches(), workers=self.workers)

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
    once: bool = False,
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
        once=once,
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
