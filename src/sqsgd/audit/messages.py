"""A message holds its declared columns and nothing else of the vector."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.audit.direction_attack import promised_of_vector
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.known_codes import quantizer_of, symbol_of
from sqsgd.audit.subject import Floats, Subject, cosine, forward, preimage, task_for
from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.mechanisms.quantized import Quantized
from sqsgd.privacy.reconstruction import reconstruction_bound
from sqsgd.randomness import seeded_rng
from sqsgd.task import Task

CHANCE = 1e-6
_REPORTS, _SEEDS = 4, 5
_LEAST_READING = 32  # numbers; fewer correlate with something by chance
_CLEAR = 3  # four-byte words that a message may share with the vector by chance
_BEYOND = 1.05  # how far beyond the range a coordinate must lie to be clamped for certain
_DECLARED, _COLUMNS = "message is its columns", "columns have a density"
_UNSENT, _SAME = "coordinates that are not sent", "same codes, same bytes"
_WORDS, _READINGS = "numbers in clear", "correlation of the bytes"


def message_checks(subject: Subject) -> Iterator[Finding]:
    """The layout, what the message must not depend on, and what it must not contain."""
    scheme = subject.scheme
    numbers = subject.numbers("message")
    x = numbers.standard_normal(scheme.dim).astype(np.float32)
    x /= np.float32(np.linalg.norm(x))
    yield _declared(subject, x)
    if not subject.private:
        return
    yield _columns(subject)
    yield _unsent(subject, x, numbers)
    yield _same_codes(subject, numbers)
    if scheme.privacy.protects_single_reports:
        yield _in_clear(subject, x)
        yield _correlated(subject, x)


def _declared(subject: Subject, x: Vector) -> Finding:
    """A message that is unpacked and packed again is the same to the last byte: it holds only the columns."""
    scheme, wrong, rng = subject.scheme, 0, subject.noise()
    spike = np.zeros_like(x)
    spike[0] = 1.0
    vectors = (x, np.zeros_like(x), np.float32(1e3) * x, np.float32(1e-3) * x, spike, np.float32(1e3) * spike)
    for client, vector in enumerate(vectors):
        task = task_for(scheme, subject.seed, client=client)
        message = scheme.encode(vector, task, rng)
        again = scheme.seal(scheme.open(message, task), task)
        wrong += message != again or 8 * len(message) != scheme.bits
    size = scheme.bits // 8
    return judged(
        "message",
        _DECLARED,
        measured=wrong,
        limit=0,
        sentence=f"{len(vectors) - wrong} of {len(vectors)} messages are exactly the envelope and the "
        f"declared columns, {size:,} bytes whatever the vector.",
    )


def _columns(subject: Subject) -> Finding:
    """Every column is codes, the norm symbol, or has a finite alphabet that a density covers."""
    scheme = subject.scheme
    layout, mechanism = scheme.mechanism.layout, scheme.mechanism
    floats = sum(column.alphabet is None for column in layout)
    in_reals = scheme.privacy.arithmetic == "real"
    extra = 0 if in_reals else floats
    statement = f"All {len(layout)} columns have finite alphabets"
    if floats and in_reals:
        statement = "One column is float32, as documented: its guarantee holds in real arithmetic only"
    elif floats:
        statement = f"{floats} of {len(layout)} columns hold floats, which no finite law covers"
    quantizer = quantizer_of(mechanism)
    if quantizer is not None:
        due = 2 if symbol_of(mechanism) is not None else 1
        shape = (layout[0].count, layout[0].alphabet) == (quantizer.dim, quantizer.levels)
        extra += abs(len(layout) - due) + (not shape)
        if len(layout) != due or not shape:
            statement = f"{len(layout)} columns are sent where PrivQuant and ScalarDP account for {due}"
    return judged(
        "message",
        _COLUMNS,
        measured=extra,
        limit=0,
        sentence=f"{statement}.",
    )


def _unsent(subject: Subject, x: Vector, numbers: np.random.Generator) -> Finding:
    """With the same noise, the message stays the same to the last byte when the residual changes."""
    scheme = subject.scheme
    if not scheme.sends_block:
        return skipped("message", _UNSENT, "Every coordinate contributes to the report.")
    changed = 0
    for seed in range(_SEEDS):
        task = task_for(scheme, subject.seed, client=seed)
        message = scheme.encode(x, task, seeded_rng(seed))
        other = (1e3 * numbers.standard_normal(scheme.dim)).astype(np.float32)
        sent = scheme.sent_coordinates((), task)
        other[sent] = x[sent]
        changed += scheme.encode(other, task, seeded_rng(seed)) != message
    unsent = scheme.dim - int(sent.size)
    return judged(
        "message",
        _UNSENT,
        measured=changed,
        limit=0,
        sentence=f"{changed or 'None'} of {_SEEDS} messages {'changes' if changed == 1 else 'change'} "
        f"when the {unsent:,} coordinates that wait in the residual change.",
    )


def _same_codes(subject: Subject, numbers: np.random.Generator) -> Finding:
    """With the same noise, vectors that are rounded to the same codes give the same message."""
    scheme = subject.scheme
    if not isinstance(mechanism := scheme.mechanism, Quantized):
        return skipped("message", _SAME, "Its codes are not PrivQuant's.")
    changed = compared = 0
    for seed in range(_SEEDS):
        task = task_for(scheme, subject.seed, client=seed)
        signs = numbers.choice(np.array([-1.0, 1.0]), mechanism.dim)
        vectors = [_clamped(scheme, mechanism, task, signs, numbers) for _ in range(2)]
        first, second = (None if x is None else scheme.encode(x, task, seeded_rng(seed)) for x in vectors)
        if first is not None and second is not None:
            compared += 1
            changed += first != second
    if compared == 0:
        return skipped("message", _SAME, "At this budget no two vectors certainly have the same codes.")
    return judged(
        "message",
        _SAME,
        measured=changed,
        limit=0,
        sentence=f"{changed or 'None'} of {compared} messages {'differs' if changed == 1 else 'differ'} "
        "between vectors that are rounded to the same codes: nothing finer than a code is sent.",
    )


def _clamped(
    scheme: Scheme, mechanism: Quantized, task: Task, signs: Floats, numbers: np.random.Generator
) -> Vector | None:
    """A vector with these signs, with every coordinate beyond the range and a size that is clamped too."""
    y = (30 * task.bound * signs * numbers.uniform(1.0, 1.2, signs.size)).astype(np.float32)
    _, half_range, _ = mechanism.prepared(y, task.bound)
    if np.min(np.abs(y)) < _BEYOND * half_range:
        return None
    x = preimage(scheme, y, task)
    image = forward(scheme, x, task)
    return x if cosine(image, y) > 1 - 1e-5 and np.all(np.sign(image) == signs) else None


def _words(data: bytes) -> npt.NDArray[np.uint32]:
    """Four bytes as one number, from every offset."""
    wide = [
        np.frombuffer(data, np.uint8)[start : len(data) - 3 + start].astype(np.uint32) for start in range(4)
    ]
    return np.asarray(sum(part << np.uint32(8 * place) for place, part in enumerate(wide)), np.uint32)


def _known(vector: Vector) -> npt.NDArray[np.uint32]:
    """The vector's numbers as float32, and pairs of neighbours as float16, without zeros."""
    half = vector.astype("<f2").view("<u2").astype(np.uint32)
    pairs = half[:-1] | half[1:] << np.uint32(16)
    known = np.unique(np.concatenate([vector.astype("<f4").view("<u4"), pairs]))
    return np.asarray(known[(known & np.uint32(0x7FFF7FFF)) != 0])


def _in_clear(subject: Subject, x: Vector) -> Finding:
    """Four bytes of a message, at any offset, that are a float32 of the vector or two of its float16."""
    scheme, rng, most, values = subject.scheme, subject.noise(), 0, 0
    for client in range(_REPORTS):
        task = task_for(scheme, subject.seed, client=client)
        words = _words(scheme.body(scheme.encode(x, task, rng)))
        for vector in (x, forward(scheme, x, task)):
            known = _known(vector)
            most, values = max(most, int(np.isin(words, known).sum())), max(values, known.size)
    expected = values * scheme.bits / 8 / 2.0**32
    limit = _CLEAR + math.ceil(expected + 6 * math.sqrt(expected))
    return judged(
        "message",
        _WORDS,
        measured=most,
        limit=limit,
        sentence=f"A message holds at most {most} numbers of the vector as float32 or float16; "
        f"up to {limit} can be chance.",
    )


def _readings(scheme: Scheme, message: bytes, columns: tuple[npt.NDArray[Any], ...]) -> Iterator[Floats]:
    """The columns' numbers, and the bytes read as floats and integers from every offset."""
    yield from (column.astype(np.float64) for column in columns)
    body = scheme.body(message)
    for kind in ("<f4", "<f2", "i1", "<i2", "<i4"):
        width = np.dtype(kind).itemsize
        for start in range(width):
            count = (len(body) - start) // width
            if count > 0:
                with np.errstate(invalid="ignore"):
                    yield np.frombuffer(body, kind, count, start).astype(np.float64)


def _correlated(subject: Subject, x: Vector) -> Finding:
    """The largest correlation of any reading with any stretch of the vector, against what ε allows."""
    scheme, rng, epsilon = subject.scheme, subject.noise(), promised_of_vector(subject)
    worst, at, allowed = -math.inf, 0.0, 1.0
    for client in range(2):
        task = task_for(scheme, subject.seed, client=client)
        message = scheme.encode(x, task, rng)
        image = forward(scheme, x, task)
        targets = [(image.astype(np.float64), epsilon)]
        if scheme.sends_block:
            waiting = x.astype(np.float64)
            waiting[scheme.sent_coordinates((), task)] = 0.0
            targets.append((waiting, 0.0))
        readings = [*_readings(scheme, message, scheme.open(message, task))]
        for target, known in targets:
            for reading in readings:
                if not _LEAST_READING <= reading.size <= target.size:
                    continue
                tests = 40.0 * 2 * 2 * target.size
                bound = reconstruction_bound(known, reading.size, CHANCE / tests)
                found = _largest_correlation(reading, target)
                if found - bound > worst:
                    worst, at, allowed = found - bound, found, bound
    if worst == -math.inf:
        return skipped("message", _READINGS, "Too few numbers to distinguish a correlation from chance.")
    return judged(
        "message",
        _READINGS,
        measured=at,
        limit=allowed,
        sentence=f"No way to read a message as numbers correlates with the vector beyond chance and epsilon: "
        f"{at:.3f} at most, where {allowed:.3f} is allowed."
        if at <= allowed
        else f"Read as numbers, a message correlates with the vector by {at:.3f}; {allowed:.3f} is allowed.",
    )


def _largest_correlation(reading: Floats, target: Floats) -> float:
    """Over all places of the target; by ranks, which outliers cannot dominate."""
    finite = np.nan_to_num(reading, posinf=0.0, neginf=0.0)
    if np.ptp(finite) == 0:
        return 0.0
    ranks = np.argsort(np.argsort(finite, kind="stable"), kind="stable")
    pattern = ranks - ranks.mean()
    size = 1 << (target.size + pattern.size - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(target, size) * np.conj(np.fft.rfft(pattern, size)), size)
    sums = np.concatenate([[0.0], np.cumsum(target**2)])
    energy = sums[pattern.size :] - sums[: -pattern.size]
    lags = target.size - pattern.size + 1
    lengths = np.sqrt(np.maximum(energy, 1e-300)) * float(np.linalg.norm(pattern))
    return float(np.max(np.abs(product[:lags]) / lengths))
