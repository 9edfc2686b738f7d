"""Mechanisms, schemes and generators that are broken on purpose, some in ways that once passed an audit."""
# ruff: noqa: N802 (functions that become classes)

from __future__ import annotations

import hashlib
import math
import os
import time
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf

import numpy as np

from sqsgd import Rng, seeded_rng
from sqsgd.core import Privacy, Scheme
from sqsgd.core.codec import Column
from sqsgd.mechanisms.privquant import boundary_law, kept_law
from sqsgd.schemes.privunit_index import NearestVertices
from sqsgd.schemes.sqsgd import Direction
from sqsgd.schemes.sqsgd_paper import BoundedRange

REAL = 64  # coordinates: more than any scheme whose outputs the audit can list


def mechanism(base=Direction):
    """A mechanism that sends what the decorated function makes of the right columns."""

    def decorate(change):
        def randomize(self, x, bound, rng):
            return change(self, base.randomize(self, x, bound, rng), x, bound, rng)

        return dataclass(frozen=True, kw_only=True)(type(change.__name__, (base,), {"randomize": randomize}))

    return decorate


def scheme(encode):
    """A scheme with this ``encode``."""
    return dataclass(frozen=True, kw_only=True)(type(encode.__name__, (Scheme,), {"encode": encode}))


# ---------------------------------------------------------------- infinite epsilon at a few inputs


@dataclass(frozen=True, kw_only=True)
class ZeroIsNear(NearestVertices):
    """A zero vector always sends a near vertex."""

    def randomize(self, x, bound, rng):
        near, share = self._near(x, bound)
        if share > 0:
            return NearestVertices.randomize(self, x, bound, rng)
        near = near ^ rng.below(2)
        return (near[rng.below(self.nearest)][None].astype(np.uint32),)


def _norm_in_clear(leaks):
    """ScalarDP without randomised response where ``leaks(value, symbol)``."""

    def change(mechanism):
        norm = mechanism.norm

        def privatize(value, rng):
            position = norm._position(value)
            lower = min(int(position), norm.levels - 1)
            symbol = lower + (rng.uniform() < position - lower)
            if leaks(value, symbol) or norm._stays.draw(rng):
                return symbol
            return (symbol + 1 + rng.below(norm.levels)) % (norm.levels + 1)

        norm.privatize = privatize

    return change


symbol_zero_in_clear = _norm_in_clear(lambda value, symbol: symbol == 0)
norm_in_clear = _norm_in_clear(lambda value, symbol: 0.6 <= value <= 0.7)


# ---------------------------------------------------------------- the law of the matches


def _wider(quantizer):
    return boundary_law(quantizer.dim, quantizer.levels, 2.5 * quantizer.epsilon, quantizer.threshold)


def keeps_too_often(m):
    """p is too large for both the densities and the sampler."""
    m.quantizer.law = _wider(m.quantizer)


def sampler_keeps_too_often(m):
    """p is too large in the sampler alone: the density is still correct."""
    m.quantizer.law.__dict__["sampler"] = _wider(m.quantizer).sampler


def threshold_off_by_one(m):
    """The sampler draws more than τ matches instead of at least τ, with the same p."""
    q = m.quantizer
    wrong = kept_law(q.dim, q.levels, inf, min(q.threshold + 1, q.dim), Fraction(q.keep))
    q.law.__dict__["sampler"] = wrong.sampler


@dataclass(frozen=True, kw_only=True)
class Understated(Direction):
    """States four fifths of its epsilon."""

    @property
    def privacy(self):
        return Privacy(epsilon=0.8 * (self.quantizer.epsilon + self.norm.epsilon), notion="local")


@dataclass(frozen=True, kw_only=True)
class NormNotCounted(Direction):
    @property
    def privacy(self):
        counted = self.quantizer.epsilon + (self.norm.epsilon if self.dim < REAL else 0.0)
        return Privacy(epsilon=counted, notion="local")


# ---------------------------------------------------------------- places, codes and the norm symbol


def _rewritten(name, places, codes_of):
    """A quantiser with the right number of matches, but these positions and other codes."""

    def change(mechanism):
        quantizer = mechanism.quantizer

        def randomize(x, bound, rng):
            codes = quantizer.quantize(x, bound, rng)
            kept = places(quantizer.law.sampler.draw(rng), quantizer.dim, rng)
            return (np.where(kept, codes, codes_of(codes, quantizer.levels, rng)).astype(np.uint8),)

        quantizer.randomize = randomize

    change.__name__ = name
    return change


def _uniform_places(count, dim, rng):
    return np.isin(np.arange(dim), np.argsort(rng.take(8 * dim).view("<u8"))[:count])


def _uniform_codes(codes, levels, rng):
    return (codes + 1 + np.array([rng.below(levels - 1) for _ in codes])) % levels


rewritten_rightly = _rewritten("rewritten_rightly", _uniform_places, _uniform_codes)
first_places = _rewritten("first_places", lambda count, dim, rng: np.arange(dim) < count, _uniform_codes)
one_run = _rewritten(  # all positions are equally likely, but the matches form one cyclic run
    "one_run", lambda count, dim, rng: (np.arange(dim) + rng.below(dim)) % dim < count, _uniform_codes
)
next_codes = _rewritten("next_codes", _uniform_places, lambda codes, levels, rng: (codes + 1) % levels)


def norm_without_noise(m):
    levels = m.norm.levels
    m.norm.privatize = lambda value, rng: round(levels * min(value, 1.0))


@mechanism()
def NormInClear(self, columns, x, bound, rng):
    clear = min(self.norm.levels, round(self.norm.levels * float(np.linalg.norm(x)) / bound))
    return columns if self.dim < REAL else (columns[0], np.array([clear], np.uint8))


@mechanism()
def OneInClear(self, columns, x, bound, rng):
    if self.dim >= REAL:
        columns[0][0] = x[0] > 0
    return columns


@mechanism()
def Sometimes(self, columns, x, bound, rng):
    """One report in twenty is not privatised."""
    clear = self.dim >= REAL and rng.below(20) == 0
    return ((x > 0).astype(np.uint8), columns[1]) if clear else columns


@mechanism()
def Parity(self, columns, x, bound, rng):
    """The symbol carries the last bit of a float."""
    bit = int(np.float32(x.sum()).view(np.uint32)) & 1
    if self.dim >= REAL:
        columns[1][0] = min(self.norm.levels, (columns[1][0] & 0xFE) + bit)
    return columns


@mechanism()
def LargestKept(self, columns, x, bound, rng):
    """The right number of matches, but at the largest coordinates."""
    codes, truth = columns[0], (x > 0).astype(np.uint8)
    if self.dim >= REAL:
        kept = np.argsort(-np.abs(x))[: np.count_nonzero(codes == truth)]
        codes[:] = 1 - truth
        codes[kept] = truth[kept]
    return columns


@mechanism()
def NothingInClear(self, columns, x, bound, rng):
    return columns if x.any() else tuple(np.zeros_like(column) for column in columns)


# ---------------------------------------------------------------- noise


@dataclass(frozen=True, kw_only=True)
class Repeating(Direction):
    """Has a stream of its own."""

    def randomize(self, x, bound, rng):
        return Direction.randomize(self, x, bound, seeded_rng(1))


@mechanism()
def Careless(self, columns, x, bound, rng):
    np.random.random()  # noqa: NPY002
    return columns


@scheme
def PublicNoise(self, x, task, rng):
    rng.word()
    return Scheme.encode(self, x, task, seeded_rng(task.seed + 7919 * task.client + task.round))


@scheme
def SixteenBits(self, x, task, rng):
    """All noise is expanded from two random bytes."""
    return Scheme.encode(self, x, task, seeded_rng(rng.word() & 0xFFFF))


@scheme
def RoundSeven(self, x, task, rng):
    return Scheme.encode(self, x, task, seeded_rng(0) if task.round == 7 else rng)


_last = {}


@scheme
def Remembering(self, x, task, rng):
    """A third of the codes of odd rounds repeat the client's last report."""
    codes, symbol = (column.copy() for column in Scheme.randomize(self, x, task, rng))
    key = (self.fingerprint, task.client, task.round - 1)
    if task.round % 2 == 1 and task.round > 8 and key in _last:
        codes = np.where(rng.take(codes.size) < 256 // 3, _last[key], codes).astype(np.uint8)
    _last[self.fingerprint, task.client, task.round] = codes
    return self.seal((codes, symbol), task)


# ---------------------------------------------------------------- leaks beside the codes


def _with_column(base, column, values):
    """A mechanism that sends one more column, in clear."""

    @dataclass(frozen=True, kw_only=True)
    class Extra(base):
        @property
        def layout(self):
            return (*base.layout.func(self), column(self.dim))

        def randomize(self, x, bound, rng):
            return (*base.randomize(self, x, bound, rng), values(x))

    return Extra


ExtraFloats = _with_column(
    Direction, lambda dim: Column(min(dim, 8), None), lambda x: x[:8].astype(np.float32)
)
ExtraCodes = _with_column(BoundedRange, lambda dim: Column(dim, 2), lambda x: (x > 0).astype(np.uint8))
"""A finite alphabet is not enough: no density accounts for the column."""


@mechanism(BoundedRange)
def LowBits(self, columns, x, bound, rng):
    return (columns[0] & 0xFE | (x.view(np.uint32) >> 12 & 1).astype(np.uint8),)


@scheme
def Leaking(self, x, task, rng):
    """64 bytes of unsent coordinates replace codes in a well-formed message."""
    codes, *rest = Scheme.randomize(self, x, task, rng)
    column = self.mechanism.layout[0]
    waiting = np.delete(x, self.transforms[0].coordinates(task, self.dim) if self.keeps_state else [])
    if waiting.size >= 64:
        body = bytes(column.pack(codes))
        codes = column.unpack(memoryview(waiting[:16].astype("<f4").tobytes() + body[64:]))
    return self.seal((codes, *rest), task)


@dataclass(frozen=True, kw_only=True)
class Longer(Scheme):
    """A message is a byte longer for vectors far beyond the bound, and open ignores the extra byte."""

    def encode(self, x, task, rng):
        message = Scheme.encode(self, x, task, rng)
        far = self.mechanism.dim >= REAL and float(np.linalg.norm(x)) > 100 * task.bound
        return message + b"\0" if far else message

    def open(self, message, task):
        return Scheme.open(self, message[: self.bits // 8], task)


@dataclass(frozen=True, kw_only=True)
class InPadding(Scheme):
    """A sign hides in an unused bit of the symbol, and open clears it."""

    def encode(self, x, task, rng):
        message = bytearray(Scheme.encode(self, x, task, rng))
        message[-1] |= 0x80 * bool(x[0] > 0)
        return bytes(message)

    def open(self, message, task):
        return Scheme.open(self, message[:-1] + bytes([message[-1] & 0x7F]), task)


# ---------------------------------------------------------------- keys that can be guessed


def keyed(make_key):
    """A generator whose key is ``make_key()`` and that claims to protect."""

    class Weak(Rng):
        def _start(self):
            self._key = _hashed(make_key())
            super()._start()

    return Weak


def _hashed(content):
    return hashlib.blake2b(content, digest_size=32).digest()


def _folded(content):
    return np.bitwise_xor.reduce(np.frombuffer(content, "<u4")).tobytes()


def _unread():
    os.urandom(32)
    return _hashed(time.time_ns().to_bytes(8, "little"))


KEYS = {  # and the bytes that are read, and the bits that matter
    "a constant": (lambda: bytes(32), 0, 0),
    "time of day": (lambda: _hashed(time.time_ns().to_bytes(8, "little")), 0, None),
    "time of day, and the operating system's bytes unused": (_unread, 32, None),
    "4 random bytes": (lambda: _hashed(os.urandom(4)), 4, 32),
    "4 of 32 random bytes": (lambda: _hashed(os.urandom(32)[:4]), 32, 32),
    "32 random bytes folded to 4": (lambda: _folded(os.urandom(32)), 32, 32),
    "16 random bytes, hashed": (lambda: _hashed(os.urandom(16)), 16, 128),
    "32 random bytes": (lambda: os.urandom(32), 32, 256),
    "getrandom": (lambda: os.getrandom(32), 32, 256),
}


def short_key():
    """Every bit of 32 bytes matters, but only 2^20 keys exist."""
    digest = hashlib.blake2b(os.urandom(32), digest_size=4).digest()
    return (int.from_bytes(digest, "little") % 2**20).to_bytes(3, "little")


# ---------------------------------------------------------------- many at once, and rare sides


@dataclass(frozen=True, kw_only=True)
class LargeBatchesRepeat(Scheme):
    """A batch of 1,024 reports or more takes its noise from a table."""

    def encode_many(self, x, tasks, rng, *, workers=1):
        rng = seeded_rng(5) if len(tasks) >= 1024 else rng
        return Scheme.encode_many(self, x, tasks, rng, workers=workers)


class AlwaysNear:
    """In place of a coin."""

    def draw(self, rng):
        return 1

    def draw_many(self, count, rng):
        return np.ones(count, np.int64)


@dataclass(frozen=True, kw_only=True)
class NeverFar(NearestVertices):
    """A far vertex is never sent where that is rarer than one report in a hundred."""

    @cached_property
    def _is_near(self):
        near = self.nearest * math.exp(self.epsilon)
        rare = near > 0.99 * (near + 2 * self.dim - self.nearest)
        return AlwaysNear() if rare else NearestVertices._is_near.func(self)


@dataclass(frozen=True, kw_only=True)
class NeverFarAtOnce(NearestVertices):
    """The same, where many are drawn at once."""

    def _draw_many(self, near, rng):
        made = NeverFar(dim=self.dim, epsilon=self.epsilon, nearest=self.nearest)
        return NearestVertices._draw_many(made, near, rng)


def never_low(m):
    """The same for the number of matches."""
    q = m.quantizer
    if q.law.keep > 0.99:
        almost = Fraction(10**12, 10**12 + 1)
        q.law.__dict__["sampler"] = kept_law(q.dim, q.levels, inf, q.threshold, almost).sampler


@dataclass(frozen=True, kw_only=True)
class TwoPercent(NearestVertices):
    """The sampler has 2 % more epsilon than the density."""

    @cached_property
    def _is_near(self):
        return NearestVertices(dim=self.dim, epsilon=1.02 * self.epsilon, nearest=self.nearest)._is_near


def few_children(self):
    """The generators of the parts of a batch have 2^20 states, behind a hash."""
    return keyed(short_key)()
