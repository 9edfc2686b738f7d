"""Mechanisms built on PrivQuant: what a new one inherits, and that the audit recognises it."""

from dataclasses import dataclass

import numpy as np
import pytest

from sqsgd import PrivQuant, ScalarDP, seeded_rng
from sqsgd.audit.goodness_of_fit import known_codes
from sqsgd.audit.subject import Subject
from sqsgd.core import Scheme
from sqsgd.core.codec import Column
from sqsgd.mechanisms.privquant import Quantized


@dataclass(frozen=True, kw_only=True)
class FirstCoordinate(Quantized):
    """A range of ± bound, and the first coordinate's magnitude as the symbol."""

    quantizer: PrivQuant
    first: ScalarDP | None = None

    @property
    def identity(self):
        return f"first ({self.quantizer.identity})"

    @property
    def symbol(self):
        return self.first

    def prepared(self, x, bound):
        return x, bound, None if self.first is None else abs(float(x[0])) / bound

    def estimate(self, columns, bound):
        return self.quantizer.estimate(columns[0], bound)

    def relative_error(self, share):
        return float("nan")


PLAIN = FirstCoordinate(quantizer=PrivQuant(8, 4, 5.0))
SYMBOL = FirstCoordinate(quantizer=PrivQuant(8, 4, 5.0), first=ScalarDP(1.0, 2.0))
X = np.linspace(-0.9, 0.9, 8, dtype=np.float32)


def test_columns_and_epsilon_are_those_of_the_parts():
    assert (PLAIN.layout, PLAIN.traits.has_symbol, PLAIN.privacy.epsilon) == ((Column(8, 4),), False, 5.0)
    assert SYMBOL.layout == (Column(8, 4), Column(1, SYMBOL.first.levels + 1))
    assert (SYMBOL.traits.has_symbol, SYMBOL.privacy.epsilon, SYMBOL.privacy.is_pure_local) == (
        True,
        7.0,
        True,
    )
    assert PLAIN.own_reach is None


def test_a_report_is_the_codes_and_then_the_symbol():
    (plain,) = PLAIN.randomize(X, 1.0, seeded_rng(1))
    codes, symbol = SYMBOL.randomize(X, 1.0, seeded_rng(1))
    assert np.array_equal(plain, codes)
    assert PLAIN.magnitude((plain,), 3.0) is None
    assert SYMBOL.magnitude((codes, symbol), 3.0) == 3.0 * SYMBOL.first.estimate(int(symbol[0]))
    assert SYMBOL.log_density((codes, symbol), X, 1.0) == pytest.approx(
        PLAIN.log_density((codes,), X, 1.0) + SYMBOL.first.log_density(int(symbol[0]), 0.9)
    )


def test_the_audit_recognises_a_new_one():
    def make(*, dim, epsilon, bytes):
        return Scheme(name="new", dim=8, transforms=(), mechanism=SYMBOL)

    for vector in known_codes(Subject(name="new", make=make, dim=8)):
        assert np.array_equal(
            SYMBOL.quantizer.quantize(vector.x, vector.task.bound, seeded_rng(1)), vector.codes
        )
        assert vector.size == abs(float(vector.x[0])) / vector.task.bound
