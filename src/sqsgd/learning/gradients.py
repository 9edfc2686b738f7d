"""A model as one flat float32 vector, and the gradient of its loss as another.

The order is that of ``model.parameters()``, trainable ones only, each in row-major order. Torch splits its
sums by the number of its threads: the same inputs give the same bits on one machine for one
``torch.set_num_threads``, not across different ones.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Vector: TypeAlias = npt.NDArray[np.float32]


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that make up the flat vector, in its order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """The length d of the flat vector.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in trainable_parameters(model))


def get_flat(model: nn.Module, out: Vector | None = None) -> Vector:
    """A copy of the parameters as one vector, written into ``out`` if given.

    >>> layer = nn.Linear(1, 2)
    >>> set_flat(layer, np.array([1, 2, 3, 4], np.float32))
    >>> get_flat(layer)
    array([1., 2., 3., 4.], dtype=float32)
    """
    with torch.no_grad():
        return _join(list(trainable_parameters(model)), parameter_count(model), out)


def set_flat(model: nn.Module, vector: Vector) -> None:
    """Copy the vector into the parameters."""
    parameters = trainable_parameters(model)
    _require_vector("vector", vector, parameter_count(model))
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        # Through NumPy, because torch warns of a vector that may not be written to.
        np.copyto(parameter.detach().numpy(), vector[start:stop].reshape(parameter.shape))
        start = stop


def loss_gradient(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    out: Vector | None = None,
    seed: int | None = None,
) -> tuple[float, Vector]:
    """The mean cross entropy over the batch, and its gradient as one vector.

    The gradient is written into ``out`` if given, so that a loop over clients allocates nothing; torch's
    ``.grad`` fields are neither read nor written. A model that draws random numbers (dropout) repeats
    itself only if ``seed`` is given; torch's global generator is then left as it was.

    >>> layer = nn.Linear(1, 2, bias=False)
    >>> set_flat(layer, np.zeros(2, np.float32))
    >>> loss_gradient(layer, torch.ones(4, 1), torch.zeros(4, dtype=torch.int64))
    (0.6931471824645996, array([-0.5,  0.5], dtype=float32))
    """
    if len(inputs) == 0:
        raise ValueError("inputs must hold at least one example, not 0")
    parameters = trainable_parameters(model)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        loss = nn.functional.cross_entropy(_logits(model, inputs), labels)
    # A parameter that the loss does not reach has gradient zero, and keeps its place in the vector.
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.item(), _join(list(gradients), parameter_count(model), out)


def evaluate(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, batch_size: int = 250
) -> tuple[float, float]:
    """Accuracy (a fraction) and mean cross entropy, in evaluation mode; the model's mode is put back.

    >>> layer = nn.Linear(1, 2, bias=False)
    >>> set_flat(layer, np.array([1, -1], np.float32))
    >>> evaluate(layer, torch.tensor([[9.0], [9.0]]), torch.tensor([0, 1]))
    (0.5, 9.0)
    """
    if len(inputs) == 0 or batch_size < 1:
        raise ValueError(f"inputs and batch_size must be at least 1, not {len(inputs)} and {batch_size}")
    correct, loss = 0, 0.0
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(inputs), batch_size):
                truth = labels[start : start + batch_size]
                logits = _logits(model, inputs[start : start + batch_size])
                correct += int((logits.argmax(dim=1) == truth).sum())
                loss += nn.functional.cross_entropy(logits, truth, reduction="sum").item()
    finally:
        for module, training in modes:
            module.training = training
    return correct / len(inputs), loss / len(inputs)


def _logits(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    logits = model(inputs)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(inputs):
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(
            f"the model must return a row of class scores an example: ({len(inputs)}, classes), not {found}"
        )
    return logits


def _join(tensors: list[torch.Tensor], dim: int, out: Vector | None) -> Vector:
    vector = np.empty(dim, np.float32) if out is None else out
    _require_vector("out", vector, dim)
    torch.cat([tensor.reshape(-1) for tensor in tensors], out=torch.from_numpy(vector))
    return vector


def _require_vector(name: str, vector: Vector, dim: int) -> None:
    if vector.dtype != np.float32 or vector.shape != (dim,) or not vector.flags.c_contiguous:
        raise ValueError(
            f"{name} must be a contiguous float32 vector of length {dim:,}, not {vector.dtype} {vector.shape}"
        )
