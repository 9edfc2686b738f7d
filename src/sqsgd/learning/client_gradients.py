"""Gradients of many clients at once, a row for each: by a kernel for softmax models, else by ``vmap``."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from sqsgd.learning.datasets import Dataset
from sqsgd.learning.gradients import loss_gradient
from sqsgd.learning.objectives import Objective
from sqsgd.learning.partition import Indices

Losses = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]

_MOST_EXAMPLES = 8  # per client: with more, torch is as fast client by client
_FLOATS = 1 << 22  # gradients that vmap computes at once
_CLIENTS = 128  # that a thread takes at once


def linear_head(model: nn.Module) -> nn.Linear | None:
    """The model's only layer, if it is a softmax of the inputs themselves: all of it is trained."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    *before, last = layers or [model]
    plain = all(type(layer) in (nn.Flatten, nn.Identity) for layer in before)
    if not plain or type(last) is not nn.Linear or _hooked(model):
        return None
    return last if all(parameter.requires_grad for parameter in last.parameters()) else None


def _hooked(model: nn.Module) -> bool:
    """Whether something watches or changes what the model computes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "parametrizations")
    return any(getattr(module, name, None) for module in model.modules() for name in hooks)


def head_gradients(
    head: nn.Linear, dataset: Dataset, chosen: Indices, bounds: Indices, *, workers: int = 1
) -> tuple[Losses, Rows]:
    """Each client's mean loss and gradient over its examples chosen[bounds[i]:bounds[i + 1]].

    A row depends on the client's own examples alone, not on ``workers`` or on the other clients:
    tests/learning/test_client_gradients.py::test_a_row_depends_on_its_client_alone.
    """
    from sqsgd.kernels.softmax import softmax_gradients

    features = dataset.train_inputs.flatten(1).numpy()
    labels = dataset.train_labels.numpy()
    weights = head.weight.detach().numpy()
    biases = np.empty(0, np.float32) if head.bias is None else head.bias.detach().numpy()
    count = len(bounds) - 1
    losses, rows = np.empty(count), np.empty((count, weights.size + biases.size), np.float32)

    def work(start: int) -> None:
        stop = min(start + _CLIENTS, count)
        part = slice(start, stop)
        softmax_gradients(
            features, labels, weights, biases, chosen, bounds[start : stop + 1], losses[part], rows[part]
        )

    starts = range(0, count, _CLIENTS)
    if workers == 1 or len(starts) < 2:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, starts))
    return losses, rows


def alike(bounds: Indices) -> list[Indices]:
    """Groups of at least two clients, by number, that have few examples and equally many.

    >>> [group.tolist() for group in alike(np.array([0, 2, 4, 30, 60, 62, 63]))]
    [[0, 1, 4]]
    """
    sizes = np.diff(bounds)
    groups = [np.flatnonzero(sizes == size) for size in np.unique(sizes[sizes <= _MOST_EXAMPLES])]
    return [group for group in groups if len(group) > 1]


def batchable(model: nn.Module, dataset: Dataset, objective: Objective) -> bool:
    """Whether ``batched_gradients`` can compute this loss: vmap supports all of it, with equal results."""
    inputs, labels = dataset.train_inputs[:1], dataset.train_labels[:1]
    try:
        _, rows = batched_gradients(model, dataset, np.array([0, 0]), np.array([0, 1, 2]), objective)
    except Exception:  # what vmap does not support may fail in the user's own checks
        return False
    _, alone = loss_gradient(model, inputs, labels, objective=objective)
    return bool(np.allclose(rows, alone, rtol=1e-3, atol=1e-4 * float(np.abs(alone).max())))


def batched_gradients(
    model: nn.Module, dataset: Dataset, chosen: Indices, bounds: Indices, objective: Objective
) -> tuple[Losses, Rows]:
    """The same for any loss of a model without randomness, for clients with equally many examples.

    The last bits may depend on which clients are computed together.
    """
    every = {f"model.{name}": value.detach() for name, value in model.named_parameters()}
    names = {f"model.{name}" for name, value in model.named_parameters() if value.requires_grad}
    trained = {name: value for name, value in every.items() if name in names}
    whole = _Loss(model, objective)

    def loss(
        parameters: Mapping[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        found: torch.Tensor = functional_call(whole, {**every, **parameters}, (inputs, labels))
        return found

    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
    count, dim = len(bounds) - 1, sum(value.numel() for value in trained.values())
    places = torch.from_numpy(chosen.reshape(count, -1))
    losses, rows = np.empty(count), np.empty((count, dim), np.float32)
    size = max(1, _FLOATS // dim)
    for start in range(0, count, size):
        part = places[start : start + size]
        gradients, values = each(trained, dataset.train_inputs[part], dataset.train_labels[part])
        flat = torch.cat([gradients[name].reshape(len(part), -1) for name in trained], dim=1)
        losses[start : start + size], rows[start : start + size] = (
            values.detach().cpu().numpy(),
            flat.detach().cpu().numpy(),
        )
    return losses, rows


class _Loss(nn.Module):
    """A loss as a module, so that a loss which reads the model's weights gets the client's own copies."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.objective.loss(self.model, (inputs, labels))
