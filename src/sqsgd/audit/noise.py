"""Noise comes from the operating system through the client's generator, and no two reports share any."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, by_test, judged, skipped
from sqsgd.audit.subject import Subject, forward, has_density, task_for
from sqsgd.core.random import Rng, seeded_rng
from sqsgd.core.task import Task

Bits = npt.NDArray[np.uint8]
ENOUGH = 128
"""Bits of a key that nobody can guess."""
_CALLS = ("urandom", "getrandom")
_MOST_VARIED, _DRAWN = 512, 4096  # bits of what was read, bytes of what is drawn
_BLOCK = 16  # bytes of an AES block; two equal blocks mean that a keystream was used twice
_REPORTS, _INDEPENDENT, _FRESH, _FEWEST_PAIRS = 12, 40, 4000, 50
_REPEATS, _LENGTH = "noise of two reports", "random bits per report"
_TIMEOUT = 60.0  # seconds for a child process


def noise_checks(subject: Subject) -> Iterator[Finding]:
    """Generators, then reports, then the source of encode's noise."""
    yield key_check(subject)
    yield generator_check(subject)
    if subject.scheme.privacy.is_private:
        series = _series(subject)
        yield _reports(subject, series)
        yield rounds_check(series)
        yield _source(subject)
        yield _enough(subject)
    yield _untouched(subject)


# ---------------------------------------------------------------- the key of a generator


class Key(NamedTuple):
    """Bytes that a fresh generator reads from the operating system; whether equal bytes give equal draws,
    so that nothing else goes into them; and how many of the first 512 bits change the draws differently."""

    read: int
    repeats: bool
    bits: int


def key_of(noise: Callable[[], Rng]) -> Key:
    """Watch a fresh generator read its key, then flip one bit of the key after another.

    A key made from the time of day reads nothing, or repeats nothing. A key folded from longer answers
    draws the same for two different flips, which counts once.
    """
    noise().take(_DRAWN)  # imports, and whatever is read once for the whole process, happen before
    read = flipped = 0

    def answer(size: int, _flags: int = 0) -> bytes:
        """Known bytes, except for one flipped bit."""
        nonlocal read
        places = range(read, read + size)
        read += size
        return bytes(i * 151 % 251 ^ (1 << flipped % 8 if i == flipped // 8 else 0) for i in places)

    def drawn(flip: int = -1) -> bytes:
        nonlocal read, flipped
        read, flipped = 0, flip
        return noise().take(_DRAWN).tobytes()

    with _operating_system(answer):
        first, before = drawn(), read
        repeats = drawn() == first
        others = {drawn(flip) for flip in range(min(8 * before, _MOST_VARIED))} - {first}
    return Key(read=before, repeats=repeats, bits=len(others))


@contextlib.contextmanager
def _operating_system(answer: Callable[..., bytes]) -> Iterator[None]:
    """Every name that a loaded module has for the operating system's calls means ``answer`` instead."""
    real = {id(getattr(os, name)) for name in _CALLS if hasattr(os, name)}
    found: list[tuple[dict[str, Any], str, Any]] = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        found += [(names, name, value) for name, value in list(names.items()) if id(value) in real]
    try:
        for names, name, _ in found:
            names[name] = answer
        yield
    finally:
        for names, name, value in found:
            names[name] = value


def key_check(subject: Subject) -> Finding:
    """The operating system's answers are watched and varied; attributes of the generator are not trusted."""
    key = key_of(subject.noise)
    bits = key.bits if key.repeats else 0
    sentence = f"{bits} bits of the operating system's {key.read:,} bytes decide the draws; {ENOUGH} suffice."
    if key.read and not key.repeats:
        sentence = "Something else than the operating system, such as the time of day, decides the draws."
    found = judged("noise", "generator of clients", sentence, bits, ENOUGH)
    return replace(found, outcome="passed" if bits >= ENOUGH else "violated")


# ---------------------------------------------------------------- the same noise twice


def draw_in_every_setting(
    noise: Callable[[], Rng], draw: Callable[[Rng, int], list[bytes]]
) -> tuple[list[bytes], list[str], list[str]]:
    """Draw with one generator twice, with fresh ones, in threads, and in forked processes.

    ``draw`` receives the number of the setting, which selects the client and the round.

    Returns:
        Pieces that must never repeat, the settings, and those that refused to draw, which is safe.
    """
    shared = noise()
    pieces = draw(shared, 0) + draw(shared, 0)  # something for the children to repeat
    for which in range(1, 4):
        pieces += draw(noise(), which)
    with ThreadPoolExecutor(3) as pool:
        for drawn in pool.map(partial(draw, shared), range(3)):
            pieces += drawn
    settings, refused = ["one client asked twice", "clients and rounds", "threads"], list[str]()
    if "fork" in multiprocessing.get_all_start_methods():
        answers = [_forked(partial(draw, shared, which)) for which in range(2)]
        pieces += [piece for answer in answers for piece in answer or []]
        (refused if None in answers else settings).append("forks")
    return pieces + draw(shared, 0), settings, refused


def _forked(draw: Callable[[], list[bytes]]) -> list[bytes] | None:
    """Draw in a forked process; None if the generator refuses."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def work() -> None:
        with contextlib.suppress(Exception):  # the parent only needs to know that it failed
            sending.send(draw())

    child = context.Process(target=work)
    with warnings.catch_warnings():  # Python warns about other threads; the child needs none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sending.close()
    answer: list[bytes] | None = None
    with contextlib.suppress(EOFError):
        answer = receiving.recv() if receiving.poll(_TIMEOUT) else None
    child.kill()
    child.join()
    return answer


def _repeats(pieces: Sequence[object]) -> int:
    return len(pieces) - len(set(pieces))


def generator_check(subject: Subject) -> Finding:
    """No two generators, and no two draws of one, have a block of noise in common."""

    def blocks(rng: Rng, _which: int) -> list[bytes]:
        taken = rng.take(_DRAWN).tobytes() + b"".join(rng.word().to_bytes(8, "little") for _ in range(32))
        return [taken[start : start + _BLOCK] for start in range(0, len(taken), _BLOCK)]

    pieces, settings, refused = draw_in_every_setting(subject.noise, blocks)
    # Two of n fresh generators share one of S states with probability 1 - exp(-n²/2S), whatever hides the
    # states: at the default length, 99.97 % for keys of four bytes.
    fresh = max(_FRESH, 13 * subject.trials)
    words = [subject.noise().word() for _ in range(fresh)]
    pieces += [subject.noise().take(_BLOCK).tobytes() for _ in range(_FRESH)]
    repeats = _repeats(pieces) + _repeats(words)
    sentence = (
        f"{repeats or 'None'} of {len(pieces):,} blocks of {_BLOCK} bytes ({', '.join(settings)}) and "
        f"the first words of {fresh:,} fresh generators repeat another."
    )
    return judged("noise", "noise of two generators", sentence, repeats, 0, refused=refused)


def _series(subject: Subject) -> list[tuple[bytes, ...]]:
    """Reports of the zero vector for each client: two for one round, and one for the next."""
    scheme, nothing = subject.scheme, np.zeros(subject.dim, np.float32)
    found = []
    for which in range(max(_FEWEST_PAIRS, subject.trials // 30)):
        rng = subject.noise()
        task = task_for(scheme, subject.seed, client=which, round=which)
        after = task_for(scheme, subject.seed, client=which, round=which + 1)
        asked = ((task, rng), (task, subject.noise()), (after, rng))
        found.append(tuple(scheme.body(scheme.encode(nothing, t, r)) for t, r in asked))
    return found


def _reports(subject: Subject, series: list[tuple[bytes, ...]]) -> Finding:
    """Reports of the zero vector in every setting, and in many rounds if chance repeats stay rare."""
    scheme, nothing = subject.scheme, np.zeros(subject.dim, np.float32)
    tasks = [task_for(scheme, subject.seed, client=which // 2, round=which % 2) for which in range(4)]

    def reports(rng: Rng, which: int) -> list[bytes]:
        return [scheme.body(scheme.encode(nothing, tasks[which], rng)) for _ in range(_REPORTS)]

    chance = likeliest(subject, nothing, tasks[0])  # also compiles the kernels before any fork
    pieces, settings, refused = draw_in_every_setting(subject.noise, reports)
    more = pieces + [report for three in series for report in three]
    if chance * (len(more) - 1) / 2 < 1 / 4:
        pieces, settings = more, [*settings, f"{len(series):,} clients in different rounds"]
    count, repeats = len(pieces), _repeats(pieces)
    expected = chance * count * (count - 1) / 2  # at most: any two are equal with at most this chance
    if not expected < count / 4:
        return skipped("noise", _REPEATS, "Some reports are likely enough here to repeat by chance.")
    limit = math.floor(expected + 6 * math.sqrt(expected) + (4 if expected > 1e-9 else 0))
    sentence = (
        f"{repeats or 'None'} of {count:,} reports of the same vector ({', '.join(settings)}) repeat "
        f"another; chance allows for {limit}."
    )
    return judged("noise", _REPEATS, sentence, repeats, limit, refused=refused, expected=expected)


def likeliest(subject: Subject, x: Vector, task: Task) -> float:
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


def rounds_check(series: list[tuple[bytes, ...]]) -> Finding:
    """Two reports of one client differ in as many bits as reports of two clients do."""
    first, again, later = (
        np.unpackbits(np.frombuffer(b"".join(parts), np.uint8)).reshape(len(series), -1)
        for parts in zip(*series, strict=True)
    )
    pairs = ((first, later), (again, later), (first, again))
    p_value = min(1.0, len(pairs) * min(2 * float(stats.norm.sf(abs(nearness(*pair)))) for pair in pairs))
    sentence = f"Reports of {len(series):,} clients in two rounds differ as much as those of two clients"
    return by_test("noise of two rounds", sentence, (p_value, 1), check="noise")


def nearness(reports: Bits, others: Bits) -> float:
    """By how many standard errors a client's own two reports are closer, or farther, than another's."""
    own, strange, stranger = (
        (reports != np.roll(others, shift, axis=0)).sum(axis=1).astype(np.float64) for shift in range(3)
    )
    # The spread of distances between different clients, doubled because neighbours share a report.
    spread = math.sqrt(2 * float(((strange - stranger) ** 2).sum()) + 1)
    return float((own - strange).sum()) / spread


# ---------------------------------------------------------------- what encode draws


class CountingRng(Rng):
    """A seeded generator that counts the bytes drawn from it."""

    drawn = 0

    def take(self, count: int) -> Bits:
        self.drawn += count
        return super().take(count)

    def fill(self, target: Bits) -> None:
        self.drawn += target.size
        super().fill(target)

    def word(self) -> int:
        self.drawn += 8
        return super().word()


def _source(subject: Subject) -> Finding:
    """The same generator state gives the same report, so the report depends on no other randomness."""
    scheme, x = subject.scheme, subject.numbers("source").standard_normal(subject.dim).astype(np.float32)
    task = task_for(scheme, subject.seed, length=float(np.linalg.norm(x)))
    watched = CountingRng(1)
    same = scheme.encode(x, task, watched) == scheme.encode(x, task, seeded_rng(1))
    other = "nothing" if same else "something"
    sentence = f"Encode draws {watched.drawn:,} bytes from its generator, and {other} from elsewhere."
    wrong = (not same) + (watched.drawn == 0)
    return judged("noise", "noise comes from the generator", sentence, wrong, 0)


def _enough(subject: Subject) -> Finding:
    """A report drawn from b random bits has a probability of at least 2^-b.

    So each report must take at least -log2 of its probability in bits from its generator. With fewer, encode
    expands a short seed, which can be guessed.
    """
    scheme, mechanism = subject.scheme, subject.scheme.mechanism
    finite = all(column.alphabet is not None for column in mechanism.layout)
    if not (finite and has_density(mechanism)):
        return skipped("noise", _LENGTH, "The probability of a report has no closed form.")
    x = subject.numbers("enough").standard_normal(subject.dim).astype(np.float32)
    measured = []
    for client in range(_REPORTS):
        task = task_for(scheme, subject.seed, client=client, length=float(np.linalg.norm(x)))
        watched = CountingRng(client)
        columns = scheme.open(scheme.encode(x, task, watched), task)
        surprise = -mechanism.log_density(columns, forward(scheme, x, task), task.bound) / math.log(2)
        measured.append((surprise - 8 * watched.drawn, surprise, 8 * watched.drawn))
    _, bits, taken = max(measured)
    sentence = (
        f"Of {_REPORTS} reports, the worst has {bits:,.0f} bits of information and took {taken:,} bits from "
        "its generator; it must take at least as many."
    )
    return judged("noise", _LENGTH, sentence, bits, taken, slack=1e-6)


def _untouched(subject: Subject) -> Finding:
    """Encode does not change the state of Python's and NumPy's global generators."""

    def states() -> str:
        return repr((random.getstate(), np.random.get_state()))  # noqa: NPY002

    scheme, before = subject.scheme, states()
    scheme.encode(np.ones(scheme.dim, np.float32), task_for(scheme, subject.seed), subject.noise())
    moved = before != states()
    verb = "draws from" if moved else "leaves alone"
    sentence = f"Encode {verb} Python's and NumPy's global generators, which anyone can seed."
    return judged("noise", "global generators", sentence, moved, 0)
