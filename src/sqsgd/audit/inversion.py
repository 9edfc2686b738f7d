"""Gradient inversion from one report (Geiping et al. 2020), with torch.

The attacker knows model, weights, labels and coordinates, and tunes the total variation on the originals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, Image, Outcome, judged
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
Batch = tuple[torch.Tensor, torch.Tensor]  # pictures and their labels
Sent = torch.Tensor | slice  # the coordinates of a report


def inverted_gradients(subject: Subject, steps: int = _STEPS) -> Iterator[Finding]:
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
            inputs, labels = data.train_inputs[chosen], data.train_labels[chosen]
            batch, other = (inputs[:size], labels[:size]), (inputs[size:], labels[size:])
            yield _inverted(subject, scheme, model, batch, other, steps)
    finally:
        torch.set_num_threads(threads)


def _inverted(
    subject: Subject, scheme: Scheme, model: nn.Module, batch: Batch, other: Batch, steps: int
) -> Finding:
    def attack(target: Vector, sent: Sent, smoothnesses: Sequence[float]) -> tuple[float, torch.Tensor]:
        """Pictures whose gradient has the target's direction, the closest to the truth over all tries."""
        goal = torch.from_numpy(target)
        tries = [_recovered(model, batch, steps, goal, sent, each) for each in smoothnesses]
        return max(((correlation(each, batch[0]), each) for each in tries), key=lambda pair: pair[0])

    gradient, unrelated = loss_gradient(model, *batch)[1], loss_gradient(model, *other)[1]
    decoded, sent, achieved = _reported(subject, scheme, gradient)
    decoded_other, sent_other, _ = _reported(subject, scheme, unrelated)
    clear, from_gradient = attack(gradient, slice(None), _SMOOTH_GRADIENT)
    seen, from_report = attack(decoded, sent, _SMOOTH_REPORT)
    blind, _ = attack(decoded_other, sent_other, _SMOOTH_REPORT)
    # Pictures have no uniform prior, so ε gives no numerical limit: a report must not reveal as much as the
    # gradient itself. Where the reconstruction bound is vacuous for the block, nothing is guaranteed either.
    as_good = seen >= _AS_GOOD * clear and seen > blind + 0.2
    outcome: Outcome = "violated" if as_good and clear > 0.5 else "passed"
    if reconstruction_bound(epsilon_of_vector(subject), max(2, scheme.mechanism.dim)) > _VACUOUS:
        outcome = "not applicable"
    rows = {"Original": batch[0], "From the raw gradient": from_gradient, "From one report": from_report}
    name = f"pictures from one report, batch of {len(batch[0])}"
    sentence = (
        f"Pictures recovered from one report correlate with the originals by {seen:.2f}; from the raw "
        f"gradient by {clear:.2f}, from a report about other pictures by {blind:.2f}. The check passes if a "
        "report reveals less than the gradient does."
    )
    found = judged("reconstruct", name, sentence, seen, clear, cosine=achieved, blind=blind)
    return replace(found, outcome=outcome, pictures={title: _images(row) for title, row in rows.items()})


def _reported(subject: Subject, scheme: Scheme, gradient: Vector) -> tuple[Vector, Sent, float]:
    """The decoded gradient on the coordinates of one report, these, and its cosine with the true one."""
    task = task_for(scheme, subject.seed, length=float(np.linalg.norm(gradient)))
    message = scheme.encode(gradient, task, subject.noise())
    decoded = scheme.decode(message, task).astype(np.float32)
    if not (scheme.sends_block or scheme.mechanism.traits.chooses):
        return decoded, slice(None), cosine(decoded, gradient)
    sent = scheme.sent_coordinates(scheme.open(message, task), task)
    return decoded[sent], torch.tensor(sent), cosine(decoded[sent], gradient[sent])


def _recovered(
    model: nn.Module, batch: Batch, steps: int, target: torch.Tensor, sent: Sent, smoothness: float
) -> torch.Tensor:
    (pictures, labels), parameters = batch, trainable_parameters(model)
    generator = torch.Generator().manual_seed(1)
    guess = (0.5 * torch.randn(pictures.shape, generator=generator)).requires_grad_(True)
    adam = torch.optim.Adam([guess], lr=_RATE)
    slower = torch.optim.lr_scheduler.MultiStepLR(adam, [steps * part // 8 for part in (3, 5, 7)], 0.1)
    for _ in range(steps):
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


def correlation(pictures: torch.Tensor, truth: torch.Tensor) -> float:
    pairs = torch.stack([pictures.flatten(1), truth.flatten(1)], dim=1)
    return float(torch.stack([torch.corrcoef(pair)[0, 1].nan_to_num() for pair in pairs]).mean())


def _images(pictures: torch.Tensor) -> tuple[Image, ...]:
    scaled = (pictures - pictures.min()) / (pictures.max() - pictures.min()).clamp_min(1e-9)
    return tuple(picture[0].double().numpy() for picture in scaled)
