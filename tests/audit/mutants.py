"""Mechanisms and generators that are broken on purpose, each in a way that once passed an audit."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import time
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from sqsgd import Rng, make_scheme
from sqsgd.mechanisms.match_law import boundary_law
from sqsgd.schemes.privunit_index import NearestVertices


def broken(change, name="sqsgd", **options):
    """A factory of schemes whose mechanism is passed through ``change``; signs, by default."""
    options = options or ({"code": "signs"} if name == "sqsgd" else {})

    def make(*, dim, epsilon, bytes):
        scheme = make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes, **options)
        mechanism = change(scheme.mechanism) or scheme.mechanism
        return dataclasses.replace(scheme, mechanism=mechanism)

    return make


# ---------------------------------------------------------------- infinite epsilon


@dataclass(frozen=True, kw_only=True)
class ZeroIsNear(NearestVertices):
    """A zero vector always sends a near vertex."""

    def randomize(self, x, bound, rng):
        near, share = self._near(x, bound)
        if share > 0:
            return NearestVertices.randomize(self, x, bound, rng)
        near = near ^ rng.below(2)
        return (near[rng.below(self.nearest)][None].astype(np.uint32),)


def zero_is_near(mechanism):
    return ZeroIsNear(dim=mechanism.dim, epsilon=mechanism.epsilon, nearest=mechanism.nearest)


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


# ---------------------------------------------------------------- a sampler that departs a little


class _Sampler:
    """Draws numbers of matches through ``draw``, which gets the true sampler and the generator."""

    def __init__(self, inner, draw):
        self.inner, self._draw = inner, draw

    def draw(self, rng):
        return self._draw(self.inner, rng)


def _sampled(make):
    def change(mechanism):
        law = mechanism.quantizer.law
        law.__dict__["sampler"] = _Sampler(law.sampler, make(mechanism.quantizer))

    return change


@_sampled
def low_side_too_rare(quantizer):
    """One low draw in a hundred is replaced by one of the high side."""

    def draw(sampler, rng):
        matches = sampler.draw(rng)
        if matches < quantizer.threshold and rng.below(100) == 0:
            while matches < quantizer.threshold:
                matches = sampler.draw(rng)
        return matches

    return draw


@_sampled
def larger_epsilon(quantizer):
    """ε is 2 % larger in the sampler, not in the density."""
    wrong = boundary_law(quantizer.dim, quantizer.levels, 1.02 * quantizer.epsilon, quantizer.threshold)
    return lambda sampler, rng: wrong.sampler.draw(rng)


@_sampled
def cut_at_64_bits(quantizer):
    """The word is compared with edges rounded to 64 bits; no further bits are drawn."""

    def draw(sampler, rng):
        place = bisect_left(sampler._above, rng.word())
        return sampler._values[place] if place < len(sampler._values) else sampler._top

    return draw


@_sampled
def clipped_low_side(quantizer):
    """No fewer matches than two deviations below their mean."""
    chance = 1 / quantizer.levels
    least = math.ceil(quantizer.dim * chance - 2 * math.sqrt(quantizer.dim * chance * (1 - chance)))

    def draw(sampler, rng):
        matches = sampler.draw(rng)
        return matches if matches >= quantizer.threshold else max(matches, least)

    return draw


UNSEEN = (low_side_too_rare, larger_epsilon, cut_at_64_bits, clipped_low_side)
"""Departures of the sampler that an audit of the default length does not see."""


# ---------------------------------------------------------------- keys that can be guessed


def keyed(make_key):
    """A generator whose key is ``make_key()`` and that claims to protect."""

    class Weak(Rng):
        def _rekey(self):
            self._seed = int.from_bytes(make_key(), "little")
            super()._rekey()
            self._seed, self.protects = None, True

    return Weak


def _hashed(content):
    return hashlib.blake2b(content, digest_size=32).digest()


def _folded(content):
    return np.bitwise_xor.reduce(np.frombuffer(content, "<u4")).tobytes()


def _unread():
    os.urandom(32)
    return _hashed(time.time_ns().to_bytes(8, "little"))


KEYS = {
    "time of day": lambda: _hashed(time.time_ns().to_bytes(8, "little")),
    "time of day, and the operating system's bytes unused": _unread,
    "4 random bytes": lambda: _hashed(os.urandom(4)),
    "4 of 32 random bytes": lambda: _hashed(os.urandom(32)[:4]),
    "32 random bytes folded to 4": lambda: _folded(os.urandom(32)),
    "32 random bytes hashed to 4": lambda: hashlib.blake2b(os.urandom(32), digest_size=4).digest(),
    "a constant": lambda: bytes(32),
}
RIGHT_KEYS = {
    "32 random bytes": lambda: os.urandom(32),
    "16 random bytes, hashed": lambda: _hashed(os.urandom(16)),
    "getrandom": lambda: os.getrandom(32),
}
