"""A model as one float32 vector, and the gradients of its loss as such vectors.

The order is that of ``model.parameters()``, trainable ones only, each in row-major order. Several clients are
computed in parallel, or many at once by ``vmap``.
"""

import contextlib
import copy
import ctypes
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from sqsgd._internal.checks import Vector
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.objectives import DEFAULT, OBJECTIVES, Batch, Objective
from sqsgd.learning.partition import Indices

Losses = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
_T = TypeVar("_T")

_DEFAULT = OBJECTIVES[DEFAULT]
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_FLOATS = 1 << 22  # gradients that vmap computes at once


def prepare_torch() -> None:
    """Set up this process for many small gradients, once."""
    torch.set_num_threads(1)  # bits do not depend on the number of cores
    # If glibc returns each activation to the system, page faults take a third of the gradient's time.
    with contextlib.suppress(OSError, TypeError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc accepts
        library.mallopt(_TRIM_THRESHOLD, 512 << 20)


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in trainable_parameters(model))


def flatten(tensors: Iterable[torch.Tensor]) -> Vector:
    """Return a copy of tensors, such as parameters or their gradients, as one vector."""
    vector: Vector = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu().numpy()
    return vector


def get_flat(model: nn.Module) -> Vector:
    return flatten(trainable_parameters(model))


def set_flat(model: nn.Module, vector: Vector) -> None:
    """Copy a float32 vector of the right length into the trainable parameters, else raise ValueError."""
    parameters, dim = trainable_parameters(model), parameter_count(model)
    if vector.dtype != np.float32 or vector.shape != (dim,):
        given = f"{vector.dtype} {vector.shape}"
        raise ValueError(f"vector must be a float32 vector of length {dim:,}, not {given}")
    # A copy, because torch warns about read-only vectors.
    parts = torch.split(torch.tensor(vector), [parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.detach().copy_(part.reshape(parameter.shape))


def trained_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters that require gradients, by name: an adapter's file, or its Flower message.

    >>> model = nn.Sequential(nn.Linear(9, 4).requires_grad_(False), nn.Linear(4, 2))
    >>> list(trained_state(model))
    ['1.weight', '1.bias']
    """
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


def load_trained(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Copy such parameters into a model with the same frozen part. Raises ValueError unless they fit."""
    own = {name: value for name, value in model.named_parameters() if value.requires_grad}
    wrong = set(own) ^ set(state) or {name for name in own if own[name].shape != state[name].shape}
    if wrong:
        raise ValueError(f"these are not the weights that the model trains: {', '.join(sorted(wrong)[:6])}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(state[name])


def frozen_checksum(model: nn.Module) -> int:
    """Of the parameters and buffers that are not trained, which all who train the model must share."""
    trained, found = {value.data_ptr() for value in trainable_parameters(model)}, 0
    for value in model.state_dict().values():
        if value.data_ptr() not in trained:
            found = zlib.crc32(value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), found)
    return found


def loss_gradient(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int | None = None,
    objective: Objective = _DEFAULT,
) -> tuple[float, Vector]:
    """The mean loss over the batch, and its gradient as one vector; ``seed`` makes dropout repeat itself."""
    if len(inputs) == 0:
        raise ValueError("inputs must contain at least one example")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            # Seeding all devices would also change generators that fork_rng does not restore.
            (torch.default_generator.manual_seed if inputs.is_cpu else torch.manual_seed)(seed)
        loss = objective.loss(model, (inputs, labels))
    if not loss.requires_grad:
        raise ValueError(f"loss {objective.name!r} does not depend on the model's trainable weights")
    # A parameter that does not affect the loss has gradient zero and keeps its place in the vector.
    parameters = trainable_parameters(model)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.item(), flatten(gradients)


def local_gradient(
    model: nn.Module, batches: Iterable[Batch], rate: float, *, seed: int | None = None, objective: Objective
) -> tuple[float, Vector]:
    """Return the mean loss and the mean gradient along a client's own SGD steps, which begin at the model.

    The model that the client reaches is its own minus rate times steps times this mean. The given model keeps
    its weights.
    """
    moving, total, losses = copy.deepcopy(model), np.zeros(parameter_count(model)), list[float]()
    for step, batch in enumerate(batches):
        own = None if seed is None else seed + step
        loss, gradient = loss_gradient(moving, *batch, seed=own, objective=objective)
        set_flat(moving, get_flat(moving) - np.float32(rate) * gradient)
        losses.append(loss)
        total += gradient
    return sum(losses) / len(losses), (total / len(losses)).astype(np.float32)


def in_threads(one: Callable[[_T], tuple[float, Vector]], work: Iterable[_T], workers: int) -> Iterator[Any]:
    """The loss and gradient of many clients, on ``workers`` threads, four ahead each."""
    waiting = iter(work)
    with ThreadPoolExecutor(workers) as pool:
        while some := list(itertools.islice(waiting, 4 * workers)):
            yield from pool.map(one, some)


def batchable(model: nn.Module, dataset: Dataset, objective: Objective) -> bool:
    """Whether ``batched_gradients`` can compute this loss: vmap supports all of it, with equal results."""
    try:
        _, rows = batched_gradients(model, dataset, np.zeros((2, 1), np.int64), objective)
    except Exception:  # what vmap does not support may fail in the user's own checks
        return False
    inputs, labels = dataset.train_inputs[:1], dataset.train_labels[:1]
    _, alone = loss_gradient(model, inputs, labels, objective=objective)
    return bool(np.allclose(rows, alone, rtol=1e-3, atol=1e-4 * float(np.abs(alone).max())))


def batched_gradients(
    model: nn.Module, dataset: Dataset, chosen: Indices, objective: Objective
) -> tuple[Losses, Rows]:
    """The losses and gradients of many clients, with a row of ``chosen`` each, of a loss without randomness.

    The last bits may depend on who is computed together.
    """
    size = max(1, _FLOATS // parameter_count(model))
    each = of_batches(model, objective, chunk_size=size)
    return each(dataset.train_inputs[chosen], dataset.train_labels[chosen])


def of_batches(
    model: nn.Module, objective: Objective, **options: Any
) -> Callable[[torch.Tensor, torch.Tensor], tuple[Losses, Rows]]:
    """Return a function of many batches: the loss and the gradient of each; ``options`` are those of vmap."""
    whole = WholeLoss(model, objective)
    trained = {name: value.detach() for name, value in whole.named_parameters() if value.requires_grad}

    def loss(parameters: dict[str, torch.Tensor], *batch: torch.Tensor) -> torch.Tensor:
        return functional_call(whole, parameters, batch)  # type: ignore[no-any-return]

    def found(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[Losses, Rows]:
        gradients, losses = each(trained, inputs, labels)
        rows = torch.cat([gradients[name].flatten(1) for name in trained], dim=1)
        return losses.detach().cpu().double().numpy(), rows.detach().cpu().numpy()

    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0), **options)
    return found


class WholeLoss(nn.Module):
    """A loss as a module, so that a loss which reads the model's weights gets the client's own copies."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.objective.loss(self.model, (batch[0], batch[1]))
