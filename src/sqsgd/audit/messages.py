"""A message holds its declared columns and nothing else of the vector, and reveals no more than ε allows."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.subject import Subject, cosine, forward, preimage, task_for
from sqsgd.core.random import seeded_rng
from sqsgd.core.task import Task
from sqsgd.mechanisms.privquant import Quantized
from sqsgd.privacy.reconstruction import reconstruction_bound

CHANCE = 1e-6  # that the largest cosine of all trials exceeds its bound although ε is correct
_SEEDS = 5
_UNSENT = "coordinates that are not sent"


def message_checks(subject: Subject) -> Iterator[Finding]:
    numbers, privacy = subject.numbers("message"), subject.scheme.privacy
    x = _unit_vector(subject.scheme.dim, numbers)
    yield _declared(subject, x)
    if privacy.is_private:
        yield _columns(subject)
        yield _unsent(subject, x, numbers)


def _unit_vector(dim: int, numbers: np.random.Generator) -> Vector:
    x = numbers.standard_normal(dim).astype(np.float32)
    return np.asarray(x / np.float32(np.linalg.norm(x)))


def _tasks(subject: Subject, count: int) -> list[Task]:
    return [task_for(subject.scheme, subject.seed, client=client) for client in range(count)]


def _declared(subject: Subject, x: Vector) -> Finding:
    """Check that unpacking and packing restores a message to the last byte: it holds only the columns."""
    scheme, wrong, rng = subject.scheme, 0, subject.noise()
    spike = np.eye(1, x.size, dtype=np.float32)[0]
    vectors = [np.float32(size) * each for size in (1.0, 1e3, 1e-3, 0.0) for each in (x, spike)]
    for vector, task in zip(vectors, _tasks(subject, len(vectors)), strict=True):
        message = scheme.encode(vector, task, rng)
        wrong += message != scheme.seal(scheme.open(message, task), task) or 8 * len(message) != scheme.bits
    sentence = f"{wrong or 'None'} of {len(vectors)} messages differ from envelope and declared columns."
    return judged("message", "message is its columns", sentence, wrong, 0)


def _columns(subject: Subject) -> Finding:
    """Every column is codes, the norm symbol, or has a finite alphabet that a density covers."""
    mechanism = subject.scheme.mechanism
    layout = mechanism.layout
    extra = sum(column.alphabet is None for column in layout)
    sentence = f"{extra or 'None'} of {len(layout)} columns hold floats, which no finite law covers."
    if extra and mechanism.privacy.arithmetic == "real":
        extra, sentence = 0, "A column is float32, as documented: the guarantee assumes real arithmetic."
    if extra and mechanism.privacy.notion == "record":
        extra, sentence = 0, "All columns are computed from whole numbers that are private already."
    if isinstance(mechanism, Quantized):
        due, quantizer = 1 + (mechanism.symbol is not None), mechanism.quantizer
        shape = (layout[0].count, layout[0].alphabet) == (quantizer.dim, quantizer.levels)
        if len(layout) != due or not shape:
            extra += abs(len(layout) - due) + (not shape)
            sentence = f"{len(layout)} columns are sent where PrivQuant and ScalarDP account for {due}."
    return judged("message", "columns have a density", sentence, extra, 0)


def _unsent(subject: Subject, x: Vector, numbers: np.random.Generator) -> Finding:
    """With the same noise, the message stays the same to the last byte when the residual changes."""
    scheme, changed = subject.scheme, 0
    if not scheme.sends_block:
        return skipped("message", _UNSENT, "Every coordinate contributes to the report.")
    for seed, task in enumerate(_tasks(subject, _SEEDS)):
        other = (1e3 * numbers.standard_normal(scheme.dim)).astype(np.float32)
        sent = scheme.sent_coordinates((), task)
        other[sent] = x[sent]
        changed += len({scheme.encode(vector, task, seeded_rng(seed)) for vector in (x, other)}) > 1
    sentence = f"{changed or 'None'} of {_SEEDS} messages change with coordinates that are not sent."
    return judged("message", _UNSENT, sentence, changed, 0)


def guessed_directions(subject: Subject) -> Iterator[Finding]:
    """The decoded report as a guess at the direction: of the block that is sent, and of the whole vector."""
    scheme = subject.scheme
    if scheme.transforms and scheme.mechanism.dim > 1:
        yield _direction(subject, "direction of what is sent", scheme.mechanism.dim, block=True)
    if scheme.dim > 1:
        yield _direction(subject, "direction of the whole vector", scheme.dim)


def _direction(subject: Subject, name: str, dim: int, block: bool = False) -> Finding:
    """Random unit vectors, or blocks of uniform direction that vectors are made for, against the bound."""
    scheme, numbers, rng, cosines = subject.scheme, subject.numbers(name), subject.noise(), list[float]()
    # The length of a unit vector's block.
    length = math.sqrt(dim / scheme.dim) if block and scheme.sends_block else 1.0
    for task in _tasks(subject, max(50, subject.trials // 100)):
        truth = np.float32(length) * _unit_vector(dim, numbers)
        x = preimage(scheme, truth, task) if block else truth
        if block and not cosines and cosine(forward(scheme, x, task), truth) < 1 - 1e-6:
            return skipped("reconstruct", name, "Vectors are padded, so the block is the whole vector.")
        columns = scheme.open(message := scheme.encode(x, task, rng), task)
        guess = scheme.mechanism.estimate(columns, task.bound) if block else scheme.decode(message, task)
        cosines.append(cosine(guess, truth))
    largest, mean = max(cosines), sum(cosines) / len(cosines)
    privacy = scheme.privacy  # without a local guarantee, the server may know the vector
    epsilon = privacy.epsilon if privacy.notion == "local" else math.inf
    bound = reconstruction_bound(epsilon, dim, CHANCE / len(cosines))
    sentence = f"Largest cosine of {len(cosines)} decoded reports with the truth ({mean:.4f} on average)."
    found = judged("reconstruct", name, sentence, largest, bound, mean=mean, dimensions=dim)
    return found if bound < 1.0 else replace(found, outcome="not applicable")
