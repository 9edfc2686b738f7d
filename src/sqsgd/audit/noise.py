"""Noise comes from the operating system through the client's generator, and no two reports share any."""

import contextlib
import itertools
import math
import multiprocessing
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from sqsgd.audit.findings import Finding, by_test, judged, skipped
from sqsgd.audit.subject import Subject, forward, has_density, task_for
from sqsgd.core.random import Rng, seeded_rng
from sqsgd.core.task import Tasks

Bits = npt.NDArray[np.uint8]
ENOUGH = 128  # bits of a key that nobody can guess
_MOST_VARIED, _DRAWN = 512, 4096  # bits of what was read, bytes of what is drawn
_BLOCK = 16  # bytes of an AES block; two equal blocks mean that a keystream was used twice
_REPORTS, _INDEPENDENT, _FRESH, _FEWEST_PAIRS = 12, 40, 4000, 50
_LARGE, _MOST_MEMORY = 1030, 1 << 28  # reports of a large batch, and its bytes
_REPEATS, _LENGTH = "noise of two reports", "random bits per report"
_TIMEOUT = 60.0  # seconds for a child process


def noise_checks(subject: Subject) -> Iterator[Finding]:
    yield key_check(subject)
    yield generator_check(subject)
    if subject.scheme.privacy.is_private:
        series = _series(subject)
        yield _reports(subject, series)
        yield _batches(subject)
        yield rounds_check(series)
        yield from _source(subject)
    yield _untouched(subject)


class Key(NamedTuple):
    """What decides the draws of a fresh generator."""

    read: int  # bytes from the operating system
    repeats: bool  # equal bytes give equal draws, so that nothing else goes into them
    bits: int  # how many of the first 512 change the draws differently


def key_of(noise: Callable[[], Rng]) -> Key:
    """Watch a fresh generator read its key, then flip one bit of it after another. Equal draws count once."""
    noise().take(_DRAWN)  # imports, and reads that happen once per process, come before
    read = flipped = 0

    def answer(size: int, _flags: int = 0) -> bytes:
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
    real = {id(value) for name, value in vars(os).items() if name in ("urandom", "getrandom")}
    spaces = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    found = [(names, name, old) for names in spaces for name, old in list(names.items()) if id(old) in real]
    try:
        for names, name, _ in found:
            names[name] = answer
        yield
    finally:
        for names, name, value in found:
            names[name] = value


def key_check(subject: Subject) -> Finding:
    """The operating system's answers are watched and varied; attributes of the generator are not trusted."""
    keys = [key_of(subject.noise), key_of(lambda: subject.noise().child())]
    key = min(keys, key=lambda key: key.bits if key.repeats else 0)
    bits = key.bits if key.repeats else 0
    sentence = f"{bits} bits of the operating system's {key.read:,} bytes decide the draws; {ENOUGH} suffice."
    if key.read and not key.repeats:
        sentence = "Something else than the operating system, such as the time of day, decides the draws."
    found = judged("noise", "generator of clients", sentence, bits, ENOUGH)
    return replace(found, outcome="passed" if bits >= ENOUGH else "violated")


def draw_in_every_setting(
    noise: Callable[[], Rng], draw: Callable[[Rng, int], list[bytes]]
) -> tuple[list[bytes], list[str]]:
    """Pieces that must never repeat, and the settings. A fork may refuse to draw, which is safe.

    One generator draws twice, then fresh ones, threads and forks. ``draw`` gets the number of the setting.
    """
    shared = noise()
    drawn = [draw(shared, 0), draw(shared, 0)]  # something for the children to repeat
    drawn += [draw(noise(), which) for which in range(1, 4)]
    with ThreadPoolExecutor(3) as pool:
        drawn += pool.map(partial(draw, shared), range(3))
    forked = [_forked(partial(draw, shared, which)) for which in range(2)]
    drawn += [answer or [] for answer in forked] + [draw(shared, 0)]
    settings = ["one client asked twice", "clients and rounds", "threads", *["forks"] * (None not in forked)]
    return [*itertools.chain.from_iterable(drawn)], settings


def _forked(draw: Callable[[], list[bytes]]) -> list[bytes] | None:
    """None if the generator refuses."""
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

    pieces, settings = draw_in_every_setting(subject.noise, blocks)
    # Two of n fresh generators share one of S states with probability 1 - exp(-n²/2S), also behind a hash:
    # at the default length, 99.97 % for keys of four bytes.
    fresh = max(_FRESH, 13 * subject.trials)
    parent = subject.noise()
    words = [subject.noise().word() for _ in range(fresh)] + [parent.child().word() for _ in range(fresh)]
    pieces += [subject.noise().take(_BLOCK).tobytes() for _ in range(_FRESH)]
    repeats = _repeats(pieces) + _repeats(words)
    sentence = (
        f"{repeats or 'None'} of {len(pieces):,} blocks of {_BLOCK} bytes ({', '.join(settings)}) and "
        f"the first words of {fresh:,} fresh generators and as many of batches repeat another."
    )
    return judged("noise", "noise of two generators", sentence, repeats, 0)


def _series(subject: Subject) -> list[tuple[bytes, ...]]:
    """Reports of the zero vector for each client: two for one round, and one for the next."""
    found = []
    for which in range(max(_FEWEST_PAIRS, subject.trials // 30)):
        rng = subject.noise()
        asked = ((which, rng), (which, subject.noise()), (which + 1, rng))
        found.append(tuple(_of_zero(subject, which, round, noise) for round, noise in asked))
    return found


def _of_zero(subject: Subject, client: int, round: int, rng: Rng) -> bytes:
    scheme, task = subject.scheme, task_for(subject.scheme, subject.seed, client=client, round=round)
    return scheme.body(scheme.encode(np.zeros(subject.dim, np.float32), task, rng))


def _reports(subject: Subject, series: list[tuple[bytes, ...]]) -> Finding:
    """Reports of the zero vector in every setting, and in many rounds if chance repeats stay rare."""

    def reports(rng: Rng, which: int) -> list[bytes]:
        return [_of_zero(subject, which // 2, which % 2, rng) for _ in range(_REPORTS)]

    chance = likeliest(subject)  # also compiles the kernels before any fork
    pieces, settings = draw_in_every_setting(subject.noise, reports)
    more = pieces + [report for three in series for report in three]
    if chance * (len(more) - 1) / 2 < 1 / 4:
        pieces, settings = more, [*settings, f"{len(series):,} clients in different rounds"]
    return _few_repeats(_REPEATS, pieces, chance, settings)


def _few_repeats(
    name: str, pieces: list[bytes], chance: float, settings: list[str], rows: int = 0, equal: int = 0
) -> Finding:
    """``chance``: of the likeliest report. Of ``rows`` other pairs of reports, ``equal`` were equal."""
    count, repeats = len(pieces), _repeats(pieces) + equal
    expected = chance * (count * (count - 1) / 2 + rows)
    if not expected < (count + rows) / 4:
        return skipped("noise", name, "Some reports are likely enough here to repeat by chance.")
    limit = math.floor(expected + 6 * math.sqrt(expected) + (4 if expected > 1e-9 else 0))
    told = f"{count + rows:,} reports of one vector ({', '.join(settings)})"
    sentence = f"{repeats or 'None'} of {told} are equal."
    return judged("noise", name, sentence, repeats, limit, expected=expected)


def _batches(subject: Subject) -> Finding:
    """Reports of zero by ``encode_many`` in every setting; large batches are compared row by row."""
    scheme, task, shared = subject.scheme, task_for(subject.scheme, subject.seed), subject.noise()

    def reports(rng: Rng, which: int, count: int = _REPORTS) -> list[bytes]:
        tasks = Tasks(replace(task, round=which), np.arange(count))
        messages = scheme.encode_many(np.zeros((count, scheme.dim), np.float32), tasks, rng)
        return [scheme.body(message.tobytes()) for message in messages]

    chance, large = likeliest(subject), list[list[bytes]]()
    pieces, settings = draw_in_every_setting(subject.noise, reports)
    if scheme.bits // 8 * _LARGE < _MOST_MEMORY:
        large = [reports(rng, which, _LARGE) for which, rng in enumerate((shared, shared, subject.noise()))]
        settings = [*settings, f"batches of {_LARGE:,}"]
    pairs = [pair for batches in itertools.combinations(large, 2) for pair in zip(*batches, strict=True)]
    equal = sum(one == other for one, other in pairs)
    return _few_repeats("noise of two batches", pieces, chance, settings, len(pairs), equal)


def likeliest(subject: Subject) -> float:
    """Roughly the probability of the likeliest report of zero, which bounds how often two are equal."""
    scheme, task = subject.scheme, task_for(subject.scheme, subject.seed)
    x, rngs = np.zeros(subject.dim, np.float32), map(seeded_rng, range(_INDEPENDENT))  # not those under test
    sent = [scheme.encode(x, task, rng) for rng in rngs]
    if has_density(scheme.mechanism):
        y = forward(scheme, x, task)
        columns = [scheme.open(message, task) for message in sent[:8]]
        return math.exp(min(0.0, max(scheme.mechanism.log_density(each, y, task.bound) for each in columns)))
    pairs = _INDEPENDENT * (_INDEPENDENT - 1) / 2
    equal = sum(math.comb(times, 2) for times in Counter(sent).values())
    return equal / pairs or math.ldexp(1.0, -min(scheme.code_bits // 2, 1000))


def rounds_check(series: list[tuple[bytes, ...]]) -> Finding:
    """Two reports of one client differ in as many bits as reports of two clients do."""
    first, again, later = (
        np.unpackbits(np.frombuffer(b"".join(parts), np.uint8)).reshape(len(series), -1)
        for parts in zip(*series, strict=True)
    )
    farthest = 0.0  # standard errors by which a client's own reports are closer, or farther, than another's
    for one, other in ((first, later), (again, later), (first, again)):
        own, strange, stranger = ((one != np.roll(other, i, axis=0)).sum(axis=1) for i in range(3))
        # The spread of distances between different clients, doubled because neighbours share a report.
        spread = math.sqrt(2 * float(((strange - stranger) ** 2).sum()) + 1)
        farthest = max(farthest, abs(float((own - strange).sum())) / spread)
    p_value = min(1.0, 3 * 2 * float(stats.norm.sf(farthest)))
    sentence = f"Reports of {len(series):,} clients in two rounds differ as much as reports of two clients"
    return by_test("noise of two rounds", sentence, (p_value, 1), check="noise")


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


def _source(subject: Subject) -> Iterator[Finding]:
    """The same generator state gives the same report, which takes -log2 of its probability or more in bits.

    A report drawn from b random bits has a probability of at least 2^-b.
    """
    scheme, mechanism, wrong, measured = subject.scheme, subject.scheme.mechanism, 0, []
    x = subject.numbers("source").standard_normal(subject.dim).astype(np.float32)
    finite = has_density(mechanism) and all(column.alphabet is not None for column in mechanism.layout)
    for client in range(_REPORTS):
        task = task_for(scheme, subject.seed, client=client, length=float(np.linalg.norm(x)))
        watched = CountingRng(client)
        message = scheme.encode(x, task, watched)
        wrong += watched.drawn == 0 or message != scheme.encode(x, task, seeded_rng(client))
        if finite:
            density = mechanism.log_density(scheme.open(message, task), forward(scheme, x, task), task.bound)
            surprise = -density / math.log(2)
            measured.append((surprise - 8 * watched.drawn, surprise, 8 * watched.drawn))
    sentence = (
        f"{wrong or 'None'} of {_REPORTS} reports depend on something other than the client's generator."
    )
    yield judged("noise", "noise comes from the generator", sentence, wrong, 0)
    if not measured:
        yield skipped("noise", _LENGTH, "The probability of a report has no closed form.")
        return
    _, bits, taken = max(measured)
    sentence = f"Each of {_REPORTS} reports takes as many bits from its generator as it has information."
    yield judged("noise", _LENGTH, sentence, bits, taken, slack=1e-6)


def _untouched(subject: Subject) -> Finding:
    scheme, states = subject.scheme, []
    for _ in range(2):
        states.append(repr((random.getstate(), np.random.get_state())))  # noqa: NPY002
        scheme.encode(np.ones(scheme.dim, np.float32), task_for(scheme, subject.seed), subject.noise())
    moved = states[0] != states[1]
    sentence = f"Encode {'uses' if moved else 'leaves alone'} Python's and NumPy's global generators."
    return judged("noise", "global generators", sentence, moved, 0)
