"""Gradient inversion from one report. The only module here that needs torch.

The attacker knows the model, its weights, the labels and which coordinates were sent, and searches for
pictures whose gradient has the direction of the report (Geiping et al. 2020): Adam on the pixels, with
cosine loss and total variation. The weight of the total variation is tuned on the originals, which
favours the attacker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sqsgd.audit.direction_attack import promised_of_vector
from sqsgd.audit.findings import Finding, Image, Likeness, Outcome, Pictures
from sqsgd.audit.subject import Subject, cosine, task_for
from sqsgd.core import Scheme
from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.gradients import loss_gradient, parameter_count, trainable_parameters
from sqsgd.learning.models import make_model
from sqsgd.numerics.reconstruction import reconstruction_bound
from sqsgd.training import sent_coordinates

BATCHES = (1, 4)
_STEPS, _RATE = 300, 0.3
_SMOOTH_GRADIENT, _SMOOTH_REPORT = (0.01, 0.1), (0.1, 0.3, 1.0)
_WINDOW = 7
_MODEL, _DATASET = "lenet5", "mnist5k"
_AS_GOOD, _VACUOUS = 0.95, 0.999


@dataclass(frozen=True, kw_only=True, eq=False)
class _Target:
    """The gradient that the attacker matches, on these coordinates or on all."""

    gradient: torch.Tensor
    coordinates: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Attack:
    """The model, and the pictures that its gradient was computed from."""

    model: nn.Module
    pictures: torch.Tensor
    labels: torch.Tensor
    steps: int

    def gradient(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return loss_gradient(self.model, self.pictures, self.labels)[1]

    def best(
        self, target: _Target, smoothnesses: tuple[float, ...], truth: torch.Tensor
    ) -> tuple[tuple[Image, ...], tuple[Likeness, ...]]:
        """The recovered pictures closest to the truth, over all smoothnesses."""
        tries = [self._recover(target, smoothness) for smoothness in smoothnesses]
        scored = [(pictures, likenesses(pictures, truth)) for pictures in tries]
        best = max(scored, key=lambda pair: _mean(pair[1]))
        return images(best[0]), best[1]

    def _recover(self, target: _Target, smoothness: float) -> torch.Tensor:
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
            found = torch.cat([piece.reshape(-1) for piece in pieces])
            if target.coordinates is not None:
                found = found[target.coordinates]
            likeness = nn.functional.cosine_similarity(found, target.gradient, dim=0)
            objective = 1 - likeness + smoothness * _total_variation(guess)
            (guess.grad,) = torch.autograd.grad(objective, [guess])
            adam.step()
            slower.step()
            with torch.no_grad():
                guess.clamp_(darkest, brightest)
        return guess.detach()


def _total_variation(pictures: torch.Tensor) -> torch.Tensor:
    down, across = pictures.diff(dim=2).abs().mean(), pictures.diff(dim=3).abs().mean()
    return down + across


def images(pictures: torch.Tensor) -> tuple[Image, ...]:
    """Pictures as arrays of pixels from 0 to 1."""
    scaled = (pictures - pictures.min()) / (pictures.max() - pictures.min()).clamp_min(1e-9)
    return tuple(picture[0].double().numpy() for picture in scaled)


def likenesses(pictures: torch.Tensor, truth: torch.Tensor) -> tuple[Likeness, ...]:
    """The likeness of each picture to its original."""
    width = float(truth.max() - truth.min())
    result = []
    for picture, original in zip(pictures, truth, strict=True):
        error = float(((picture - original) / width).pow(2).mean())
        both = torch.stack([picture.flatten(), original.flatten()])
        result.append(
            Likeness(
                correlation=float(torch.corrcoef(both)[0, 1].nan_to_num()),
                structure=_structure(picture / width, original / width),
                decibels=-10 * float(np.log10(max(error, 1e-10))),
            )
        )
    return tuple(result)


def _structure(picture: torch.Tensor, original: torch.Tensor) -> float:
    """Structural similarity (Wang et al. 2004) with flat windows, for pixels of range one."""

    def local(values: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(values[None], _WINDOW, 1)

    a, b = local(picture), local(original)
    spread_a, spread_b = local(picture**2) - a**2, local(original**2) - b**2
    common = local(picture * original) - a * b
    near = (2 * a * b + 1e-4) * (2 * common + 9e-4)
    return float((near / ((a**2 + b**2 + 1e-4) * (spread_a + spread_b + 9e-4))).mean())


def _mean(values: tuple[Likeness, ...]) -> float:
    return sum(value.correlation for value in values) / len(values)


def inverted_gradients(subject: Subject, steps: int = _STEPS) -> Iterator[Finding]:
    """One finding per batch size, with its pictures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second core that others use would stall every operation
    try:
        data = load_dataset(_DATASET)
        model = make_model(_MODEL, data.classes, data.in_shape, subject.seed)
        dim = parameter_count(model)
        scheme = subject.scheme
        if scheme.dim != dim:
            scheme = subject.make(dim=dim, epsilon=subject.epsilon, bits=subject.bits)
        numbers = subject.numbers("pictures")
        for size in BATCHES:
            chosen = torch.from_numpy(numbers.choice(len(data.train_labels), 2 * size, replace=False))
            attacks = [
                _Attack(
                    model=model, pictures=data.train_inputs[part], labels=data.train_labels[part], steps=steps
                )
                for part in (chosen[:size], chosen[size:])
            ]
            yield _inverted(subject, scheme, attacks[0], attacks[1])
    finally:
        torch.set_num_threads(threads)


def _inverted(subject: Subject, scheme: Scheme, attack: _Attack, other: _Attack) -> Finding:
    truth, gradient = attack.pictures, attack.gradient()
    report, achieved = _reported(subject, scheme, gradient)
    unrelated, _ = _reported(subject, scheme, other.gradient())
    raw = _Target(gradient=torch.from_numpy(gradient), coordinates=None)
    from_gradient, clear = attack.best(raw, _SMOOTH_GRADIENT, truth)
    from_report, seen = attack.best(report, _SMOOTH_REPORT, truth)
    _, blind = attack.best(unrelated, _SMOOTH_REPORT, truth)
    size = len(truth)
    title = f"A batch of {size} {'picture' if size == 1 else 'pictures'}"
    return Finding(
        check="reconstruct",
        name=f"pictures from one report, batch of {size}",
        outcome=_outcome(subject, scheme, _mean(seen), _mean(clear), _mean(blind)),
        measured=_mean(seen),
        limit=_mean(clear),
        sentence=f"Pictures recovered from one report correlate with the originals by {_mean(seen):.2f}; "
        f"from the raw gradient by {_mean(clear):.2f}, from a report about other pictures by "
        f"{_mean(blind):.2f}. The check passes if a report reveals less than the gradient does.",
        details={
            "cosine of the decoded gradient, on what was sent": achieved,
            "structural similarity from the report": sum(each.structure for each in seen) / size,
            "structural similarity from the gradient": sum(each.structure for each in clear) / size,
            "decibels from the report": sum(each.decibels for each in seen) / size,
            "decibels from the gradient": sum(each.decibels for each in clear) / size,
        },
        pictures=(
            Pictures(
                title=title,
                originals=images(truth),
                from_gradient=from_gradient,
                from_report=from_report,
                gradient_likeness=clear,
                report_likeness=seen,
                blind_likeness=blind,
                report_cosine=achieved,
            ),
        ),
    )


def _reported(
    subject: Subject, scheme: Scheme, gradient: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> tuple[_Target, float]:
    """The decoded gradient after one report, and its cosine with the true one."""
    task = task_for(scheme, subject.seed, length=float(np.linalg.norm(gradient)))
    message = scheme.encode(gradient, task, subject.noise())
    decoded = scheme.decode(message, task).astype(np.float32)
    if not (scheme.sends_block or scheme.mechanism.chooses):
        return _Target(gradient=torch.from_numpy(decoded), coordinates=None), cosine(decoded, gradient)
    sent = sent_coordinates(scheme, task, message)
    target = _Target(gradient=torch.from_numpy(decoded[sent]), coordinates=torch.tensor(sent))
    return target, cosine(decoded[sent], gradient[sent])


def _outcome(subject: Subject, scheme: Scheme, seen: float, clear: float, blind: float) -> Outcome:
    """Violated if a report reveals as much as the gradient itself although ε rules that out.

    Pictures have no uniform prior, so ε gives no numerical limit. Where the reconstruction bound is vacuous
    for the block that is sent, nothing is guaranteed about pictures either.
    """
    epsilon = promised_of_vector(subject)
    if reconstruction_bound(epsilon, max(2, scheme.mechanism.dim)) > _VACUOUS:
        return "not applicable"
    return "violated" if seen >= _AS_GOOD * clear and seen > blind + 0.2 and clear > 0.5 else "passed"
