"""Hidden leaks: only at real sizes, in some rounds, for some vectors, or outside the declared columns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from test_audit_broken import broken, caught

from sqsgd import Rng, codec, make_scheme, secure_rng, seeded_rng
from sqsgd.core import Privacy, Scheme
from sqsgd.schemes.sqsgd import Direction

REAL = 64  # coordinates: more than any scheme whose outputs the audit can list


def remade(kind):
    """A factory of ``sqsgd`` as another class of scheme."""

    def make(*, dim, epsilon, bits):
        scheme = make_scheme("sqsgd", dim=dim, epsilon=epsilon, bits=bits, code="signs")
        return kind(**{field.name: getattr(scheme, field.name) for field in dataclasses.fields(scheme)})

    return make


def changed(kind):
    return broken(lambda m: kind(quantizer=m.quantizer, norm=m.norm, reach=m.reach))


# ---------------------------------------------------------------- mechanisms


@dataclass(frozen=True, kw_only=True)
class NormInClear(Direction):
    def randomize(self, x, bound, rng):
        codes, symbol = Direction.randomize(self, x, bound, rng)
        clear = min(self.norm.levels, round(self.norm.levels * float(np.linalg.norm(x)) / bound))
        return codes, symbol if self.dim < REAL else np.array([clear], np.uint8)


@dataclass(frozen=True, kw_only=True)
class OneInClear(Direction):
    def randomize(self, x, bound, rng):
        codes, symbol = Direction.randomize(self, x, bound, rng)
        if self.dim >= REAL:
            codes[0] = x[0] > 0
        return codes, symbol


@dataclass(frozen=True, kw_only=True)
class Sometimes(Direction):
    """One report in twenty is not privatised."""

    def randomize(self, x, bound, rng):
        codes, symbol = Direction.randomize(self, x, bound, rng)
        if self.dim >= REAL and rng.below(20) == 0:
            codes = (x > 0).astype(np.uint8)
        return codes, symbol


@dataclass(frozen=True, kw_only=True)
class Parity(Direction):
    """The symbol carries the last bit of a float."""

    def randomize(self, x, bound, rng):
        codes, symbol = Direction.randomize(self, x, bound, rng)
        bit = int(np.float32(x.sum()).view(np.uint32)) & 1
        if self.dim >= REAL:
            symbol[0] = min(self.norm.levels, (symbol[0] & 0xFE) + bit)
        return codes, symbol


@dataclass(frozen=True, kw_only=True)
class LargestKept(Direction):
    """The right number of matches, but at the largest coordinates."""

    def randomize(self, x, bound, rng):
        codes, symbol = Direction.randomize(self, x, bound, rng)
        truth = (x > 0).astype(np.uint8)
        if self.dim >= REAL:
            kept = np.argsort(-np.abs(x))[: np.count_nonzero(codes == truth)]
            codes = 1 - truth
            codes[kept] = truth[kept]
        return codes, symbol


@dataclass(frozen=True, kw_only=True)
class NothingInClear(Direction):
    def randomize(self, x, bound, rng):
        codes, symbol = Direction.randomize(self, x, bound, rng)
        return (codes, symbol) if x.any() else (np.zeros_like(codes), np.zeros_like(symbol))


@dataclass(frozen=True, kw_only=True)
class NormNotCounted(Direction):
    @property
    def privacy(self):
        counted = self.quantizer.epsilon + (self.norm.epsilon if self.dim < REAL else 0.0)
        return Privacy(epsilon=counted, notion="local")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (NormInClear, "law of the norm symbol"),
        (OneInClear, "places of the matches"),
        (Sometimes, "law of the number of matches"),
        (Parity, "law of the norm symbol"),
        (LargestKept, "places of the matches"),
        (NothingInClear, "noise of two reports"),
        (NormNotCounted, "likelihood ratio, real budget"),
    ],
)
def test_mechanisms_that_leak_at_real_sizes_or_for_some_vectors_are_caught(kind, name):
    assert name in caught(changed(kind))


# ---------------------------------------------------------------- noise


@dataclass(frozen=True, kw_only=True)
class PublicNoise(Scheme):
    def encode(self, x, task, rng):
        rng.word()
        return Scheme.encode(self, x, task, seeded_rng(task.seed + 7919 * task.client + task.round))


@dataclass(frozen=True, kw_only=True)
class SixteenBits(Scheme):
    """All noise is expanded from two random bytes."""

    def encode(self, x, task, rng):
        return Scheme.encode(self, x, task, seeded_rng(rng.word() & 0xFFFF))


@dataclass(frozen=True, kw_only=True)
class RoundSeven(Scheme):
    def encode(self, x, task, rng):
        return Scheme.encode(self, x, task, seeded_rng(0) if task.round == 7 else rng)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PublicNoise, "noise of two reports"),
        (SixteenBits, "random bits per report"),
        (RoundSeven, "noise of two reports"),
    ],
)
def test_noise_that_can_be_guessed_is_caught(kind, name):
    assert name in caught(remade(kind))


def test_codes_that_depend_on_the_round_before_are_caught():
    """A third of the codes of odd rounds repeat the client's last report."""
    last = {}

    @dataclass(frozen=True, kw_only=True)
    class Remembering(Scheme):
        def encode(self, x, task, rng):
            message = Scheme.encode(self, x, task, rng)
            codes, symbol = (column.copy() for column in Scheme.open(self, message, task))
            key = (self.fingerprint, task.client, task.round - 1)
            if task.round % 2 == 1 and task.round > 8 and key in last:
                again = rng.take(codes.size) < 256 // 3
                codes = np.where(again, last[key], codes).astype(np.uint8)
            last[self.fingerprint, task.client, task.round] = codes
            head = {"scheme": self.fingerprint, "binding": task.binding}
            return codec.seal(self.mechanism.layout, (codes, symbol), **head)

    assert caught(remade(Remembering)) == {"noise of two rounds"}


def test_generators_that_start_from_few_states_are_caught():
    class Few(Rng):
        protects = True

    assert "noise of two generators" in caught(
        broken(lambda mechanism: None), noise=lambda: Few(secure_rng().word() & 0x3FFFF), trials=1000
    )


# ---------------------------------------------------------------- messages


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


@pytest.mark.parametrize("kind", [Longer, InPadding])
def test_what_travels_beside_the_columns_is_caught(kind):
    assert "message is its columns" in caught(remade(kind), trials=1000)
