"""Draws docs/pictures/large-budget.png: what gradient inversion finds in one report about one image.

The attack is that of Geiping et al. (2020). The attacker knows model, weights, label and the coordinates that
were sent, and tunes the total variation on the original.

python docs/pictures/large_budget.py         # minutes: eight attacks for each budget and image
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd._internal.checks import Vector
from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.gradients import loss_gradient, trainable_parameters
from sqsgd.learning.models import make_model

PICTURE = Path(__file__).with_name("large-budget.png")
BUDGETS = ((20_000, 25_000), (400, 256))
SEEDS = (0, 1)
STEPS, RATE = 300, 0.3
SMOOTHNESSES = (0.1, 0.3, 1.0)


class Found(NamedTuple):
    original: torch.Tensor
    guess: torch.Tensor
    likeness: float  # the correlation of the two
    blind: float  # of a guess from a report about another image


def attacked(epsilon: int, size: int, seed: int) -> Found:
    """One image of MNIST, and the best guess at it from one report of LeNet-5's gradient."""
    torch.set_num_threads(1)
    data = load_dataset("mnist5k")
    model = make_model("lenet5", data.classes, data.in_shape, seed)
    numbers = np.random.default_rng([seed, *b"pictures"])
    chosen = torch.from_numpy(numbers.choice(len(data.train_labels), 2, replace=False))
    inputs, labels = data.train_inputs[chosen], data.train_labels[chosen]
    truth = inputs[:1], labels[:1]
    best = partial(_best_guess, model, truth)
    reported = [
        _reported(loss_gradient(model, inputs[i : i + 1], labels[i : i + 1])[1], epsilon, size, seed)
        for i in range(2)
    ]
    (likeness, guess), (blind, _) = (best(*each) for each in reported)
    return Found(original=truth[0], guess=guess, likeness=likeness, blind=blind)


def _reported(
    gradient: Vector, epsilon: int, size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor | slice]:
    """The decoded gradient on the coordinates of one report, and these."""
    scheme = make_scheme("sqsgd", dim=gradient.size, epsilon=float(epsilon), bytes=size)
    bound = float(np.linalg.norm(gradient)) * scheme.unit_bound
    task = Task(round=0, client=0, seed=seed, dim=scheme.dim, bound=bound)
    message = scheme.encode(gradient, task, seeded_rng(seed))
    decoded = torch.from_numpy(scheme.decode(message, task).astype(np.float32))
    sent: torch.Tensor | slice = slice(None)
    if scheme.sends_block:
        sent = torch.tensor(scheme.sent_coordinates(scheme.open(message, task), task))
    return decoded[sent], sent


def _best_guess(
    model: nn.Module,
    truth: tuple[torch.Tensor, torch.Tensor],
    target: torch.Tensor,
    sent: torch.Tensor | slice,
) -> tuple[float, torch.Tensor]:
    """The image whose gradient has the target's direction, the closest to the truth over all tries."""
    tries = [_recovered(model, truth, target, sent, smoothness) for smoothness in SMOOTHNESSES]
    return max(((correlation(each, truth[0]), each) for each in tries), key=lambda pair: pair[0])


def _recovered(
    model: nn.Module,
    truth: tuple[torch.Tensor, torch.Tensor],
    target: torch.Tensor,
    sent: torch.Tensor | slice,
    smoothness: float,
) -> torch.Tensor:
    (pictures, labels), parameters = truth, trainable_parameters(model)
    generator = torch.Generator().manual_seed(1)
    guess = (0.5 * torch.randn(pictures.shape, generator=generator)).requires_grad_(True)
    adam = torch.optim.Adam([guess], lr=RATE)
    slower = torch.optim.lr_scheduler.MultiStepLR(adam, [STEPS * part // 8 for part in (3, 5, 7)], 0.1)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(guess), labels)
        pieces = torch.autograd.grad(loss, parameters, create_graph=True)
        found = torch.cat([piece.reshape(-1) for piece in pieces])[sent]
        variation = guess.diff(dim=2).abs().mean() + guess.diff(dim=3).abs().mean()
        objective = smoothness * variation - nn.functional.cosine_similarity(found, target, dim=0)
        (guess.grad,) = torch.autograd.grad(objective, [guess])
        adam.step()
        slower.step()
        with torch.no_grad():
            guess.clamp_(pictures.min(), pictures.max())
    return guess.detach()


def correlation(picture: torch.Tensor, truth: torch.Tensor) -> float:
    found = float(torch.corrcoef(torch.stack([picture.flatten(), truth.flatten()]))[0, 1])
    return 0.0 if math.isnan(found) else found


def draw(path: Path = PICTURE) -> None:
    """Draw the originals in the first row, and a row for each budget."""
    figure = Figure(figsize=(6.4, 2.2 * (1 + len(BUDGETS))), facecolor="white", layout="constrained")
    axes = figure.subplots(1 + len(BUDGETS), len(SEEDS), squeeze=False)
    for column, seed in enumerate(SEEDS):
        for row, (epsilon, size) in enumerate(BUDGETS, 1):
            found = attacked(epsilon, size, seed)
            about = f"{epsilon} {size} image {seed}: {found.likeness:.3f}"
            print(f"{about}; from a report about another {found.blind:.3f}", flush=True)  # noqa: T201
            axes[0][column].imshow(found.original[0, 0], cmap="gray")
            axes[row][column].imshow(found.guess[0, 0], cmap="gray")
            title = f"ε = {epsilon:,}, {size:,} bytes: {found.likeness:.2f}"
            axes[row][column].set_title(title, fontsize=8)
        axes[0][column].set_title("the image at the node", fontsize=8)
    for each in axes.flat:
        each.set_axis_off()
    figure.savefig(path, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    draw()
