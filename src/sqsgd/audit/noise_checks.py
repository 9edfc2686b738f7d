"""No two reports share noise, across clients, rounds, threads and processes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.audit._key_entropy import ENOUGH, key_of
from sqsgd.audit._noise_reuse import draw_in_every_setting
from sqsgd.audit._statistics import normal_tails
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.goodness_of_fit import by_test
from sqsgd.audit.subject import Subject, forward, has_density, task_for
from sqsgd.checks import Vector
from sqsgd.randomness import Rng, seeded_rng
from sqsgd.task import Task

Bits = npt.NDArray[np.uint8]
BLOCK = 16
"""Bytes of an AES block. Two equal blocks mean that a keystream was used twice."""
_BYTES, _REPORTS, _INDEPENDENT, _FRESH = 4096, 12, 40, 4000
_FEWEST_PAIRS = 50
_STREAMS, _REPEATS = "noise of two generators", "noise of two reports"
_ROUNDS, _LENGTH = "noise of two rounds", "random bits per report"
_SOURCE, _GLOBAL, _KIND = "noise comes from the generator", "global generators", "generator of clients"


def noise_checks(subject: Subject) -> Iterator[Finding]:
    """Generators, then reports, then the source of encode's noise."""
    yield _kind(subject)
    yield _generators(subject)
    if subject.private:
        series = _series(subject)
        yield _reports(subject, series)
        yield _rounds(series)
        yield _source(subject)
        yield _enough(subject)
    yield _untouched(subject)


def _kind(subject: Subject) -> Finding:
    """The operating system's answers are watched and varied; attributes of the generator are not trusted."""
    key = key_of(subject.noise)
    if key.read == 0:
        sentence = "A client's generator draws without reading os.urandom or os.getrandom: its key is known."
    elif not key.repeats:
        sentence = (
            f"A client's generator reads {key.read:,} bytes from the operating system, but the same bytes do "
            "not give the same draws: something else, such as the time of day, decides them."
        )
    else:
        sentence = (
            f"A client's generator reads {key.read:,} bytes from the operating system before it draws, and "
            f"{key.bits} bits of them each change the draws in their own way; {ENOUGH} are enough."
        )
    return Finding(
        check="noise",
        name=_KIND,
        outcome="passed" if key.enough else "violated",
        measured=float(key.bits) if key.repeats else 0.0,
        limit=float(ENOUGH),
        sentence=sentence,
        details={"bytes read": key.read, "same bytes, same draws": key.repeats},
    )


def _repeats(pieces: Sequence[object]) -> int:
    return len(pieces) - len(set(pieces))


def _generators(subject: Subject) -> Finding:
    def blocks(rng: Rng, _which: int) -> list[bytes]:
        taken = rng.take(_BYTES).tobytes() + b"".join(rng.word().to_bytes(8, "little") for _ in range(32))
        return [taken[start : start + BLOCK] for start in range(0, len(taken), BLOCK)]

    drawn = draw_in_every_setting(subject.noise, blocks)
    # Two of n fresh generators share one of S states with probability 1 - exp(-n²/2S), whatever hides the
    # states: at the default length, 99.97 % for keys of four bytes.
    fresh = max(_FRESH, 13 * subject.trials)
    words = [subject.noise().word() for _ in range(fresh)]
    pieces = drawn.pieces + [subject.noise().take(BLOCK).tobytes() for _ in range(_FRESH)]
    repeats = _repeats(pieces) + _repeats(words)
    settings = ", ".join(drawn.settings)
    return judged(
        "noise",
        _STREAMS,
        measured=repeats,
        limit=0,
        sentence=f"Of {len(pieces):,} blocks of {BLOCK} bytes ({settings}) and the first words of {fresh:,} "
        f"fresh generators {repeats or 'none'} {'repeat' if repeats != 1 else 'repeats'} another.",
        details={"refused in": drawn.refused},
    )


def _series(subject: Subject) -> list[tuple[bytes, bytes, bytes]]:
    """Reports of the zero vector for each client: two for one round, and one for the next.

    The mechanism's input is the same for every client and round, so only the noise differs.
    """
    scheme, nothing = subject.scheme, np.zeros(subject.dim, np.float32)
    found = []
    for which in range(max(_FEWEST_PAIRS, subject.trials // 30)):
        rng = subject.noise()
        task = task_for(scheme, subject.seed, client=which, round=which)
        after = task_for(scheme, subject.seed, client=which, round=which + 1)
        asked = ((task, rng), (task, subject.noise()), (after, rng))
        first, again, later = (scheme.body(scheme.encode(nothing, t, r)) for t, r in asked)
        found.append((first, again, later))
    return found


def _reports(subject: Subject, series: list[tuple[bytes, bytes, bytes]]) -> Finding:
    """Reports of the zero vector in every setting, and in many rounds if chance repeats stay rare."""
    scheme = subject.scheme
    nothing = np.zeros(scheme.dim, np.float32)
    tasks = [task_for(scheme, subject.seed, client=which // 2, round=which % 2) for which in range(4)]

    def reports(rng: Rng, which: int) -> list[bytes]:
        task = tasks[which]
        return [scheme.body(scheme.encode(nothing, task, rng)) for _ in range(_REPORTS)]

    scheme.encode(nothing, tasks[0], subject.noise())  # compiles the kernels before any fork
    chance = _likeliest(subject, nothing, tasks[0])
    drawn = draw_in_every_setting(subject.noise, reports)
    more = [report for three in series for report in three]
    settings = [*drawn.settings, f"{len(series):,} clients in different rounds"]
    pieces = drawn.pieces + more
    if not _by_chance(chance, pieces) < len(pieces) / 4:
        pieces, settings = drawn.pieces, drawn.settings
    count, expected = len(pieces), _by_chance(chance, pieces)
    if not expected < count / 4:
        return skipped("noise", _REPEATS, "Some reports are likely enough here to repeat by chance.")
    limit = math.floor(expected + 6 * math.sqrt(expected) + (4 if expected > 1e-9 else 0))
    repeats = _repeats(pieces)
    return judged(
        "noise",
        _REPEATS,
        measured=repeats,
        limit=limit,
        sentence=f"Of {count:,} reports of the same vector ({', '.join(settings)}) {repeats or 'none'} "
        f"{'repeat' if repeats != 1 else 'repeats'} another; chance allows for {limit}.",
        details={"refused in": drawn.refused, "repeats expected by chance, at most": expected},
    )


def _rounds(series: list[tuple[bytes, bytes, bytes]]) -> Finding:
    """Two reports of one client differ in as many bits as reports of two clients do."""
    first, again, later = (
        np.unpackbits(np.frombuffer(b"".join(parts), np.uint8)).reshape(len(series), -1)
        for parts in zip(*series, strict=True)
    )
    pairs = ((first, later), (again, later), (first, again))
    p_value = min(1.0, len(pairs) * min(normal_tails(_nearness(*pair)) for pair in pairs))
    return by_test(
        _ROUNDS,
        p_value,
        f"Three reports of each of {len(series):,} clients, from two rounds, differ as much as reports of "
        "two clients do",
        check="noise",
    )


def _nearness(reports: Bits, others: Bits) -> float:
    """By how many standard errors a client's own two reports are closer, or farther, than another's."""
    own, strange, stranger = (
        (reports != np.roll(others, shift, axis=0)).sum(axis=1).astype(np.float64) for shift in range(3)
    )
    # The spread of distances between different clients, doubled because neighbours share a report.
    spread = math.sqrt(2 * float(((strange - stranger) ** 2).sum()) + 1)
    return float((own - strange).sum()) / spread


def _by_chance(chance: float, pieces: Sequence[bytes]) -> float:
    """An upper bound on the expected number of equal pairs, if any two are equal with this probability."""
    return chance * len(pieces) * (len(pieces) - 1) / 2


def _likeliest(subject: Subject, x: Vector, task: Task) -> float:
    """Roughly the probability of the likeliest report, which bounds how often two reports are equal."""
    scheme = subject.scheme
    rngs = [seeded_rng(seed) for seed in range(_INDEPENDENT)]  # not the generator under test
    sent = [scheme.encode(x, task, rng) for rng in rngs]
    if has_density(scheme.mechanism):
        y = forward(scheme, x, task)
        columns = [scheme.open(message, task) for message in sent[:8]]
        largest = max(scheme.mechanism.log_density(each, y, task.bound) for each in columns)
        return math.exp(min(0.0, largest))
    pairs = _INDEPENDENT * (_INDEPENDENT - 1) / 2
    return _repeats(sent) / pairs or math.ldexp(1.0, -min(scheme.code_bits // 2, 1000))


class _CountingRng(Rng):
    """A seeded generator that counts the bytes drawn from it."""

    drawn = 0

    def take(self, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        self.drawn += count
        return super().take(count)

    def fill(self, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.drawn += target.size
        super().fill(target)

    def word(self) -> int:
        self.drawn += 8
        return super().word()


def _source(subject: Subject) -> Finding:
    """The same generator state gives the same report, so the report depends on no other randomness."""
    scheme, x = subject.scheme, subject.numbers("source").standard_normal(subject.dim).astype(np.float32)
    task = task_for(scheme, subject.seed, length=float(np.linalg.norm(x)))
    watched = _CountingRng(1)
    first = scheme.encode(x, task, watched)
    again = scheme.encode(x, task, seeded_rng(1))
    wrong = (first != again) + (watched.drawn == 0)
    sentence = "A report's noise comes from the generator passed to encode and from nothing else"
    if watched.drawn == 0:
        sentence = "Encode draws nothing from the generator passed to it"
    elif first != again:
        sentence = "Encode also draws from something other than the generator passed to it"
    return judged(
        "noise",
        _SOURCE,
        measured=wrong,
        limit=0,
        sentence=f"{sentence} ({watched.drawn:,} bytes per report).",
    )


def _enough(subject: Subject) -> Finding:
    """A report drawn from b random bits has a probability of at least 2^-b.

    So each report must take at least -log2 of its probability in bits from its generator. With fewer, encode
    expands a short seed, which can be guessed. How many bits the generator itself has is another check.
    """
    scheme, mechanism = subject.scheme, subject.scheme.mechanism
    finite = all(column.alphabet is not None for column in mechanism.layout)
    if not (finite and has_density(mechanism)):
        return skipped("noise", _LENGTH, "The probability of a report has no closed form.")
    x = subject.numbers("enough").standard_normal(subject.dim).astype(np.float32)
    worst, at, least = -math.inf, 0.0, 0.0
    for client in range(_REPORTS):
        task = task_for(scheme, subject.seed, client=client, length=float(np.linalg.norm(x)))
        watched = _CountingRng(client)
        columns = scheme.open(scheme.encode(x, task, watched), task)
        surprise = -mechanism.log_density(columns, forward(scheme, x, task), task.bound) / math.log(2)
        if surprise - 8 * watched.drawn > worst:
            worst, at, least = surprise - 8 * watched.drawn, surprise, 8.0 * watched.drawn
    return Finding(
        check="noise",
        name=_LENGTH,
        outcome="passed" if worst <= 1e-6 else "violated",
        measured=at,
        limit=least,
        sentence=f"None of {_REPORTS} reports has more bits of information than encode took from its "
        f"generator: {at:,.0f}, where {least:,.0f} were taken."
        if worst <= 1e-6
        else f"A report with {at:,.0f} bits of information was made from {least:,.0f} bits of its generator.",
    )


def _untouched(subject: Subject) -> Finding:
    """Encode does not change the state of Python's and NumPy's global generators."""
    scheme = subject.scheme
    task = task_for(scheme, subject.seed)

    def states() -> str:
        return repr((random.getstate(), np.random.get_state()))  # noqa: NPY002

    before = states()
    scheme.encode(np.ones(scheme.dim, np.float32), task, subject.noise())
    moved = before != states()
    return judged(
        "noise",
        _GLOBAL,
        measured=moved,
        limit=0,
        sentence="Encode draws from Python's or NumPy's global generator, which anyone can seed."
        if moved
        else "Encode leaves Python's and NumPy's global generators alone.",
    )
