"""One small batch through a model, before anything is written: does it fit, and is it repeatable?"""

from __future__ import annotations

import torch
from torch import nn

from sqsgd.learning.gradients import loss_gradient


def draws_randomness(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether the gradient depends on torch's generator (dropout); ValueError if the model cannot be trained.

    Buffers that a batch changes are refused: they would be made of the clients' data, unprotected.
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
                f"the model's buffer {name!r} changes with each batch: it would carry the clients' data, "
                "which no guarantee covers; use layers without running state"
            )
    return gradients[0].tobytes() != gradients[1].tobytes()
