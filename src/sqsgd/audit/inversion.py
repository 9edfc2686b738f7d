"""Gradient inversion from one report (Geiping et al. 2020). The only module here that needs torch.

The attacker knows the model, its weights, the labels and which coordinates were sent. The weight of the total
variation is tuned on the originals, which favours the attacker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, Image, Likeness, Outcome, Pictures
from sqsgd.audit.messages import epsilon_of_vector
from sqsgd.audit.subject import Subject, cosine, task_for
from sqsgd.core import Scheme
from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.gradients import loss_gradient, parameter_count, trainable_parameters
from sqsgd.learning.models import make_model
from sqsgd.privacy.reconstruction import reconstruction_bound

BATCHES = (1, 4)
_STEPS, _RATE = 300, 0.3
_SMOOTH_GRADIENT, _SMOOTH_REPORT = (0.01, 0.1), (0.1, 0.3, 1.0)
_MODEL, _DATASET = "lenet5", "mnist5k"
_AS_GOOD, _VACUOUS = 0.95, 0.999


@dataclass(frozen=True, kw_only=True, eq=False)
class _Attack:
    """The model, and the pictures that its gradient was computed from."""

    model: nn.Module
    pictures: torch.Tensor
    labels: torch.Tensor
    steps: int

    def gradient(self) -> Vector:
        return loss_gradient(self.model, self.pictures, self.labels)[1]

    def best(
        self, target: Vector, sent: torch.Tensor | slice, smoothnesses: Sequence[float]
    ) -> tuple[tuple[Image, ...], tuple[Likeness, ...]]:
        """Pictures whose gradient has the target's direction, the closest to the truth over all tries."""
        tries = [self._recover(torch.from_numpy(target), sent, smoothness) for smoothness in smoothnesses]
        scored = [(images(pictures), likenesses(pictures, self.pictures)) for pictures in tries]
        return max(scored, key=lambda pair: _mean(pair[1]))

    def _recover(self, target: torch.Tensor, sent: torch.Tensor | slice, smoothness: float) -> torch.Tensor:
        parameters = trainable_parameters(self.model)
        generator = torch.Generator().manual_seed(1)
        guess = (0.5 * torch.randn(self.pictures.shape, generator=generator)).requires_grad_(True)
        darkest, brightest = float(self.pictures.min()), float(self.pictures.max())
        adam = torch.optim.Adam([guess], lr=_RATE)
        drops = [self.steps * part // 8 for part in (3, 5, 7)]
        slower = torch.optim.lr_scheduler.MultiStepLR(adam, drops, 0.1)
        for _ in range(self.steps):
            loss = nn.functional.cross_entropy(self.model(guess), self.labels)
            pieces = torch.autograd.grad(loss, parameters, create_graph=True)
            found = torch.cat([piece.reshape(-1) for piece in pieces])[sent]
            variation = guess.diff(dim=2).abs().mean() + guess.diff(dim=3).abs().mean()
            objective = smoothness * variation - nn.functional.cosine_similarity(found, target, dim=0)
            (guess.grad,) = torch.autograd.grad(objective, [guess])
            adam.step()
            slower.step()
            with torch.no_grad():
                guess.clamp_(darkest, brightest)
        return guess.detach()


def images(pictures: torch.Tensor) -> tuple[Image, ...]:
    """Pictures as arrays of pixels from 0 to 1."""
    scaled = (pictures - pictures.min()) / (pictures.max() - pictures.min()).clamp_min(1e-9)
    return tuple(picture[0].double().numpy() for picture in scaled)


def likenesses(pictures: torch.Tensor, truth: torch.Tensor) -> tuple[Likeness, ...]:
    """The likeness of each picture to its original."""
    width = float(truth.max() - truth.min())
    result = []
    for picture, original in zip(pictures / width, truth / width, strict=True):
        error = float((picture - original).pow(2).mean())
        both = torch.stack([picture.flatten(), original.flatten()])
        correlation = float(torch.corrcoef(both)[0, 1].nan_to_num())
        result.append(Likeness(correlation, -10 * math.log10(max(error, 1e-10))))
    return tuple(result)


def _mean(values: Sequence[Likeness]) -> float:
    return float(np.mean([value.correlation for value in values]))


def inverted_gradients(subject: Subject, steps: int = _STEPS) -> Iterator[Finding]:
    """One finding per batch size, with its pictures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second core that others use would stall every operation
    try:
        data = load_dataset(_DATASET)
        model = make_model(_MODEL, data.classes, data.in_shape, subject.seed)
        dim, scheme, numbers = parameter_count(model), subject.scheme, subject.numbers("pictures")
        if scheme.dim != dim:
            scheme = subject.make(dim=dim, epsilon=subject.epsilon, bytes=subject.bytes)
        for size in BATCHES:
            chosen = torch.from_numpy(numbers.choice(len(data.train_labels), 2 * size, replace=False))
            attack, other = (
                _Attack(model=model, pictures=data.train_inputs[i], labels=data.train_labels[i], steps=steps)
                for i in (chosen[:size], chosen[size:])
            )
            yield _inverted(subject, scheme, attack, other)
    finally:
        torch.set_num_threads(threads)


def _inverted(subject: Subject, scheme: Scheme, attack: _Attack, other: _Attack) -> Finding:
    gradient, size = attack.gradient(), len(attack.pictures)
    decoded, sent, achieved = _reported(subject, scheme, gradient)
    unrelated, sent_of_other, _ = _reported(subject, scheme, other.gradient())
    from_gradient, clear = attack.best(gradient, slice(None), _SMOOTH_GRADIENT)
    from_report, seen = attack.best(decoded, sent, _SMOOTH_REPORT)
    _, blind = attack.best(unrelated, sent_of_other, _SMOOTH_REPORT)
    # Pictures have no uniform prior, so ε gives no numerical limit: a report must not reveal as much as the
    # gradient itself. Where the reconstruction bound is vacuous for the block, nothing is guaranteed either.
    as_good = _mean(seen) >= _AS_GOOD * _mean(clear) and _mean(seen) > _mean(blind) + 0.2
    outcome: Outcome = "violated" if as_good and _mean(clear) > 0.5 else "passed"
    if reconstruction_bound(epsilon_of_vector(subject), max(2, scheme.mechanism.dim)) > _VACUOUS:
        outcome = "not applicable"
    pictures = Pictures(
        title=f"A batch of {size} {'picture' if size == 1 else 'pictures'}",
        originals=images(attack.pictures),
        from_gradient=from_gradient,
        from_report=from_report,
        gradient_likeness=clear,
        report_likeness=seen,
        blind=_mean(blind),
        report_cosine=achieved,
    )
    return Finding(
        check="reconstruct",
        name=f"pictures from one report, batch of {size}",
        outcome=outcome,
        measured=_mean(seen),
        limit=_mean(clear),
        sentence=f"Pictures recovered from one report correlate with the originals by {_mean(seen):.2f}; "
        f"from the raw gradient by {_mean(clear):.2f}, from a report about other pictures by "
        f"{_mean(blind):.2f}. The check passes if a report reveals less than the gradient does.",
        details={"cosine": achieved},
        pictures=(pictures,),
    )


def _reported(
    subject: Subject, scheme: Scheme, gradient: Vector
) -> tuple[Vector, torch.Tensor | slice, float]:
    """The decoded gradient on the coordinates of one report, these, and its cosine with the true one."""
    task = task_for(scheme, subject.seed, length=float(np.linalg.norm(gradient)))
    message = scheme.encode(gradient, task, subject.noise())
    decoded = scheme.decode(message, task).astype(np.float32)
    if not (scheme.sends_block or scheme.mechanism.traits.chooses):
        return decoded, slice(None), cosine(decoded, gradient)
    sent = scheme.sent_coordinates(scheme.open(message, task), task)
    return decoded[sent], torch.tensor(sent), cosine(decoded[sent], gradient[sent])
