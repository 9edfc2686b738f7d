"""A model and its data, partitioned over clients: what ``sqsgd.training`` trains."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.core.random import PublicStream, Rng
from sqsgd.core.records import RecordSum
from sqsgd.core.task import Task
from sqsgd.learning import gradients, records
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.factories import one_line
from sqsgd.learning.gradients import Losses, Rows, local_gradient, loss_gradient, set_flat
from sqsgd.learning.objectives import DEFAULT, OBJECTIVES, Batch, Evaluation, Objective
from sqsgd.learning.partition import Indices, Parts, batch_indices, cohort, epoch_batches, partition

_MOST_EXAMPLES = 8  # per client: with more, torch is as fast one by one as with vmap
_AHEAD = 64  # clients whose gradients are computed before the first is used, where many are computed at once


class ModelFailed(ValueError):
    """The user's model or loss raised an exception."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningProblem:
    """Cross-silo: all clients use a batch in each round. Cross-device: a random cohort uses all its data."""

    dataset: Dataset
    model: nn.Module
    parts: Parts
    batch: int
    participants: int | None  # the size of a round's cohort; None: all clients take part
    seed: int  # of cohorts and batches
    workers: int = 1
    objective: Objective = OBJECTIVES[DEFAULT]
    minibatch: bool = False  # a cohort uses a batch of its data, too
    local_epochs: int = 0
    """Passes over a client's data in batches, in steps of ``local_lr``, whose mean gradient it sends."""
    local_lr: float = 0.0
    random: bool = False
    """The model draws random numbers (dropout): clients run one at a time, each with its own seed."""

    @property
    def dim(self) -> int:
        return gradients.parameter_count(self.model)

    @property
    def clients(self) -> int:
        return len(self.parts)

    def initial(self) -> Vector:
        return gradients.get_flat(self.model)

    def cohort(self, round: int) -> list[int]:
        if self.participants is None:
            return list(range(self.clients))
        return [int(client) for client in cohort(self.clients, self.participants, round, self.seed)]

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        set_flat(self.model, weights)
        with self._named(f"round {round}"):
            if self.minibatch and self._batchable:
                for start in range(0, len(cohort), _AHEAD):
                    some = np.asarray(cohort[start : start + _AHEAD])
                    losses, rows = self.gradient_rows(weights, round, some)
                    yield from zip(losses.tolist(), rows, strict=True)
            else:
                yield from self._one_by_one(round, cohort)

    def record_sums(
        self,
        weights: Vector,
        scheme: Scheme,
        asked: Sequence[tuple[int, Task, Rng]],
        *,
        normalise: bool = False,
    ) -> Iterator[tuple[Losses, RecordSum]]:
        """The losses and the sum of the records that each client draws, with its own generator."""
        set_flat(self.model, weights)
        same: dict[str, Any] = {"normalise": normalise, "random": self.random}
        for client, task, rng in asked:
            with self._named(f"round {task.round}"):
                take, key = self.taker(client), records.seeded_turns(self.seed, client)
                parts = (len(self.parts[client]), take, scheme, task, rng)
                found = records.silo_sum(self.model, self.objective, *parts, key=key, **same)
            yield found

    def taker(self, client: int) -> Callable[[Indices], Batch]:
        """Return the client's own examples by their numbers."""
        data, mine = self.dataset, self.parts[client]
        return lambda places: (data.train_inputs[mine[places]], data.train_labels[mine[places]])

    def check_records(self) -> None:
        """Raise ValueError if model or loss mix records."""
        data = self.dataset
        records.check_records(self.model, self.objective, (data.train_inputs[:2], data.train_labels[:2]))

    @contextlib.contextmanager
    def _named(self, when: str) -> Iterator[None]:
        """Any exception becomes a ModelFailed that says whose code failed."""
        try:
            yield
        except (ModelFailed, MemoryError):
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, ValueError) else one_line(error)
            who = f"model {type(self.model).__name__} with loss {self.objective.name!r}"
            raise ModelFailed(f"{when}: {who} failed: {reason}") from error

    def _one_by_one(self, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        data, model, objective = self.dataset, self.model, self.objective

        def batch(places: Indices) -> Batch:
            return data.train_inputs[places], data.train_labels[places]

        def one(client: int) -> tuple[float, Vector]:
            stream = PublicStream(seed=self.seed, round=round, client=client, purpose="model")
            seed = int.from_bytes(stream.words(2).tobytes(), "little") >> 1 if self.random else None
            if not self.local_epochs:
                chosen, _ = self._chosen(round, np.array([client]))
                return loss_gradient(model, *batch(chosen), seed=seed, objective=objective)
            steps = epoch_batches(self.parts[client], self.batch, self.local_epochs, round, client, self.seed)
            return local_gradient(model, map(batch, steps), self.local_lr, seed=seed, objective=objective)

        yield from map(one, cohort) if self.random else gradients.in_threads(one, cohort, self.workers)

    def gradient_rows(self, weights: Vector, round: int, cohort: Indices) -> tuple[Losses, Rows]:
        """Return the same for many clients at once: a gradient in each row."""
        set_flat(self.model, weights)
        with self._named(f"round {round}"):
            chosen, bounds = self._chosen(round, cohort)
            losses, rows = np.empty(len(cohort)), np.empty((len(cohort), self.dim), np.float32)
            sizes, alone = np.diff(bounds), np.ones(len(cohort), bool)
            for size in np.unique(sizes[sizes <= _MOST_EXAMPLES]):
                group = np.flatnonzero(sizes == size)
                if len(group) > 1 and self._batchable:
                    places = chosen[bounds[group][:, None] + np.arange(size)]
                    found = gradients.batched_gradients(self.model, self.dataset, places, self.objective)
                    (losses[group], rows[group]), alone[group] = found, False
            others = np.flatnonzero(alone)
            singles = self._one_by_one(round, cohort[others].tolist()) if others.size else ()
            for i, (loss, row) in zip(others, singles, strict=True):
                losses[i], rows[i] = loss, row
            return losses, rows

    @cached_property
    def _batchable(self) -> bool:
        alone = self.random or self.local_epochs
        return not alone and gradients.batchable(self.model, self.dataset, self.objective)

    def _chosen(self, round: int, cohort: Indices) -> tuple[Indices, Indices]:
        if self.participants is not None and not self.minibatch:
            return self.parts.together(cohort)
        each = [batch_indices(self.parts[c], self.batch, round, c, self.seed) for c in cohort.tolist()]
        return np.concatenate(each), np.append(0, np.cumsum([len(chosen) for chosen in each]))

    def named_weights(self, weights: Vector) -> dict[str, npt.NDArray[np.generic]]:
        """The model's state dict with these weights. If parts of it are frozen, the trained ones alone."""
        set_flat(self.model, weights)
        frozen = any(not value.requires_grad for value in self.model.parameters())
        state = gradients.trained_state(self.model) if frozen else self.model.state_dict()
        return {
            name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy().copy()
            for name, value in state.items()
        }

    def measure(self, weights: Vector) -> Evaluation:
        set_flat(self.model, weights)
        held = self.dataset.test_inputs, self.dataset.test_labels
        with self._named("on held-out data"):
            return self.objective.evaluate(self.model, *held, workers=self.workers)

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Return the headline metric and the loss on the held-out examples."""
        measured = self.measure(weights)
        return measured.value, measured.loss


def make_problem(
    dataset: Dataset,
    model: nn.Module,
    *,
    clients: int,
    partition_scheme: str,
    seed: int,
    device: str = "cpu",
    **chosen: Any,
) -> LearningProblem:
    """Partition the training data over the clients, and check that the model fits it; else ValueError.

    ``chosen``: other fields of ``LearningProblem``, among them ``batch`` and ``participants``.
    """
    gradients.prepare_torch()
    objective = chosen.get("objective", OBJECTIVES[DEFAULT])
    parts = partition(dataset.train_labels.numpy(), clients, partition_scheme, seed, dataset.owners)
    objective.check_labels(dataset.train_labels, dataset.train_inputs)
    if device != "cpu":
        model, dataset = model.to(device), dataset.to(device)
    random = draws_randomness(model, *_extreme_examples(dataset), objective)
    about: dict[str, Any] = {"parts": parts, "seed": seed, "random": random, **chosen}
    problem = LearningProblem(dataset=dataset, model=model, **about)
    if objective.metrics is not None:  # a mistake in them must not show after many rounds
        problem.measure(problem.initial())
    return problem


def find_device(name: str) -> str:
    """The device of this name, or for ``auto`` the best that is there. Raises ValueError if it is not."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    usable = [device for device, found in there.items() if found]
    if name not in ("auto", *usable):
        there_is = f"here there is {', '.join(usable)} (torch {torch.__version__})"
        raise ValueError(f"device = {name!r} must be one of auto, {', '.join(there)}; {there_is}")
    return usable[0] if name == "auto" else name


def _extreme_examples(dataset: Dataset) -> Batch:
    """A few examples, among them those with the largest label, and with the largest and smallest token."""
    inputs, labels = dataset.train_inputs, dataset.train_labels
    few = [int(labels.reshape(len(labels), -1).amax(dim=1).argmax()), *range(min(3, len(labels)))]
    tried, held = [(inputs[few], labels[few])], (dataset.test_inputs, dataset.test_labels)
    for tokens, beside in () if inputs.is_floating_point() else ((inputs, labels), held):
        rows = tokens.flatten(1)
        ends = [int(rows.amax(dim=1).argmax()), int(rows.amin(dim=1).argmin())]
        tried.append((tokens[ends], beside[ends]))
    return torch.cat([one for one, _ in tried]), torch.cat([one for _, one in tried])


def draws_randomness(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, objective: Objective = OBJECTIVES[DEFAULT]
) -> bool:
    """Return whether there is dropout. Raises ValueError if the model does not fit or changes a buffer."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    generator = torch.default_generator
    try:
        with torch.random.fork_rng(devices=[]):
            generator.manual_seed(1)
            start = generator.get_state()
            loss, first = loss_gradient(model, inputs, labels, objective=objective)
            drawn = not torch.equal(start, generator.get_state())
        _, second = loss_gradient(model, inputs, labels, seed=2, objective=objective)
    except Exception as error:
        hints = "" if objective.name in OBJECTIVES else f"; loss {objective.name!r} gets (model, batch)"
        if inputs.dtype == torch.uint8:
            hints += "; texts need features"
        elif not inputs.is_floating_point():
            hints += '; whole numbers are tokens: write inputs.astype("float32") if they are quantities'
        raise ValueError(
            f"the model does not fit the data (inputs of shape {tuple(inputs.shape[1:])} and type "
            f"{inputs.dtype} from {inputs.min().item():g} to {inputs.max().item():g}, labels of shape "
            f"{tuple(labels.shape[1:])} up to {labels.max().item():g}): {one_line(error)}{hints}"
        ) from error
    if not (math.isfinite(loss) and np.isfinite(first).all()):
        wrong = f"the loss of the first examples is {loss:g}, or its gradient is not finite"
        raise ValueError(f"{wrong}: check inputs, labels and loss")
    for name, buffer in model.named_buffers():
        if not torch.equal(before[name], buffer):
            wrong = "changes with each batch: it would store the clients' data without protection"
            raise ValueError(f"the model's buffer {name!r} {wrong}; use layers without running state")
    return drawn or first.tobytes() != second.tobytes()  # other devices have separate generators
