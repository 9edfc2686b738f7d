"""A model's parameters and the gradient of its loss as flat float32 vectors.

The order is that of ``model.parameters()``, trainable ones only, each in row-major order. The bits of a sum
in torch depend on the number of threads, so ``prepare_torch`` sets it to one; several clients are computed
in parallel instead.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from sqsgd.checks import Vector
from sqsgd.learning.objectives import DEFAULT, OBJECTIVES, Batch, Objective

_DEFAULT = OBJECTIVES[DEFAULT]
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h


def prepare_torch() -> None:
    """Set up this process for many small gradients, repeatable and fast. Call once, before training.

    One thread per operation: results do not depend on the number of cores, and a busy second core does not
    stall every operation at a barrier (measured: LeNet-5 takes 8 ms, but 240 ms with two threads if another
    process is running). Freed memory is kept: by default glibc returns each activation to the system, and the
    page faults of allocating it again take a third of the gradient's time. Only glibc is affected.
    """
    torch.set_num_threads(1)
    with contextlib.suppress(OSError, TypeError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc accepts
        library.mallopt(_TRIM_THRESHOLD, 512 << 20)


@contextlib.contextmanager
def threads_restored() -> Iterator[None]:
    """Afterwards torch uses as many threads as before, whatever ``prepare_torch`` set."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that make up the flat vector, in its order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """The length d of the flat vector.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in trainable_parameters(model))


def get_flat(model: nn.Module) -> Vector:
    """A copy of the parameters as one vector.

    >>> layer = nn.Linear(1, 2)
    >>> set_flat(layer, np.array([1, 2, 3, 4], np.float32))
    >>> get_flat(layer)
    array([1., 2., 3., 4.], dtype=float32)
    """
    with torch.no_grad():
        return _joined(trainable_parameters(model))


def set_flat(model: nn.Module, vector: Vector) -> None:
    """Copy the vector into the parameters."""
    parameters, dim = trainable_parameters(model), parameter_count(model)
    if vector.dtype != np.float32 or vector.shape != (dim,):
        raise ValueError(
            f"vector must be a float32 vector of length {dim:,}, not {vector.dtype} {vector.shape}"
        )
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        part = vector[start:stop].reshape(parameter.shape)
        if parameter.is_cpu:  # through NumPy, because torch warns about read-only vectors
            np.copyto(parameter.detach().numpy(), part)
        else:
            parameter.detach().copy_(torch.from_numpy(part.copy()))
        start = stop


def loss_gradient(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int | None = None,
    objective: Objective = _DEFAULT,
) -> tuple[float, Vector]:
    """The mean loss over the batch (cross entropy), and its gradient as one vector.

    Torch's ``.grad`` fields are neither read nor written. A model that draws random numbers (dropout)
    repeats itself only if ``seed`` is given; torch's global generator is then left as it was.

    >>> layer = nn.Linear(1, 2, bias=False)
    >>> set_flat(layer, np.zeros(2, np.float32))
    >>> loss_gradient(layer, torch.ones(4, 1), torch.zeros(4, dtype=torch.int64))
    (0.6931471824645996, array([-0.5,  0.5], dtype=float32))
    """
    if len(inputs) == 0:
        raise ValueError("inputs must contain at least one example")
    parameters = trainable_parameters(model)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            # Seeding all devices would also change generators that fork_rng does not restore.
            (torch.default_generator.manual_seed if inputs.is_cpu else torch.manual_seed)(seed)
        loss = objective.loss(model, (inputs, labels))
    if not loss.requires_grad:
        raise ValueError(f"loss {objective.name!r} does not depend on the model's trainable weights")
    # A parameter that does not affect the loss has gradient zero and keeps its place in the vector.
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.item(), _joined(gradients)


def loss_gradients(
    model: nn.Module, batches: Iterable[Batch], *, workers: int = 1, objective: Objective = _DEFAULT
) -> Iterator[tuple[float, Vector]]:
    """``loss_gradient`` of many clients' batches at the same parameters, in order, ``workers`` at a time.

    The results do not depend on ``workers``. At most ``workers`` gradients are computed ahead of the reader.
    Do not change the parameters before the iterator is exhausted. A model that draws random numbers
    (dropout) needs ``loss_gradient`` with a seed instead: the threads share torch's generator.

    >>> layer, batch = nn.Linear(1, 2), (torch.ones(4, 1), torch.zeros(4, dtype=torch.int64))
    >>> [gradient.shape for _, gradient in loss_gradients(layer, [batch] * 3, workers=2)]
    [(4,), (4,), (4,)]
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if workers == 1:
        for inputs, labels in batches:
            yield loss_gradient(model, inputs, labels, objective=objective)
        return
    waiting: deque[Future[tuple[float, Vector]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for inputs, labels in batches:
                waiting.append(pool.submit(loss_gradient, model, inputs, labels, objective=objective))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # the reader stopped early
                future.cancel()


def _joined(tensors: Sequence[torch.Tensor]) -> Vector:
    vector: Vector = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    return vector
