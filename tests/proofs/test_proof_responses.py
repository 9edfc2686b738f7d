"""docs/proofs: ScalarDP, NearestVertices, responses and selection, over every random choice of the code.

e^ε is a whole number here, so that all probabilities are fractions; the exact Bernoulli draws are replaced by
coins with those fractions, all else is the code that runs.
"""

import itertools
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from enumeration import Coin, largest_ratio, law

from sqsgd import ScalarDP
from sqsgd.mechanisms import sparse
from sqsgd.mechanisms.channels import TopSet, largest, ranking
from sqsgd.mechanisms.scalardp import respond
from sqsgd.schemes.privunit_index import NearestVertices


@pytest.fixture(autouse=True)
def _choices_are_generators(monkeypatch):
    for module in (sys.modules[ScalarDP.__module__], sparse):
        monkeypatch.setattr(module, "check_rng", lambda rng: rng)


def coin(sampler, odds):
    """A coin with these odds, if they are those of the code's own sampler."""
    assert abs(float(1 / sampler._cdf(0) - 1) / odds - 1) < 1e-12
    return Coin(odds / (1 + odds))


@pytest.mark.parametrize(("gain", "levels"), [(2, 1), (3, 2), (20, 5)])
def test_scalardp_by_enumeration(gain, levels):
    """Theorem D3: the ratio is e^ε exactly, and every symbol is reached from every value."""
    scalar = ScalarDP(1.0, math.log(gain), levels)
    scalar._stays = coin(scalar._stays, Fraction(gain, levels))
    values = [0.0, 1.0, 1e-300, 0.3, 0.5, 1 / 3, 1 - 2**-53, -4.0, 7.0]
    laws = [law(lambda rng, value=value: scalar.privatize(value, rng)) for value in values]
    for found in laws:
        assert sum(found.values()) == 1
        assert set(found) == set(range(levels + 1))
    assert largest_ratio(laws) == gain


@pytest.mark.parametrize(("gain", "alphabet"), [(2, 2), (7, 3), (5, 8)])
def test_response_by_enumeration(gain, alphabet):
    """Lemma V1."""
    stays = Coin(Fraction(gain, gain + alphabet - 1))
    laws = [law(lambda rng, code=code: respond(code, alphabet, stays, rng)) for code in range(alphabet)]
    for code, found in enumerate(laws):
        assert found == {
            other: Fraction(gain if other == code else 1, gain + alphabet - 1) for other in range(alphabet)
        }
    assert largest_ratio(laws) == gain


VECTORS = [np.array(x, np.float32) for x in itertools.product((-2, -1, 0, 1, 2), repeat=3)]
SPECIAL = [
    np.array(x, np.float32) for x in ((1e-30, 0, 0), (-0.0, -0.0, 0), (1e13, 1e13, -1e13), (1e-45, -1e-45, 0))
]


@pytest.mark.parametrize("nearest", [1, 2, 3])
def test_nearest_vertices_by_enumeration(nearest):
    """Theorem N4: ties, zeros, tiny and huge vectors, all pairs of 129 inputs at two bounds."""
    gain = 4
    mechanism = NearestVertices(dim=3, epsilon=math.log(gain), nearest=nearest)
    mechanism.__dict__["_is_near"] = coin(mechanism._is_near, Fraction(gain * nearest, 6 - nearest))
    laws = []
    for x, bound in [*itertools.product(VECTORS, (1.0, 3.0)), *itertools.product(SPECIAL, (1.0,))]:
        found = law(lambda rng, x=x, bound=bound: int(mechanism.randomize(x, bound, rng)[0][0]))
        assert sum(found.values()) == 1
        assert set(found) == set(range(6))
        laws.append(found)
    assert largest_ratio(laws) == gain


class ZeroAlwaysNear(NearestVertices):
    """For zero, always sends a near vertex."""

    def randomize(self, x, bound, rng):
        (code,) = super().randomize(x, bound, rng)
        return (code if x.any() else self._near(x, bound)[0][:1],)


class WrongComplement(NearestVertices):
    """A far vertex by its rank among all the vertices."""

    def randomize(self, x, bound, rng):
        near, _ = self._near(x, bound)
        if self._is_near.draw(rng):
            return (near[rng.below(self.nearest)][None],)
        return (np.array([rng.below(2 * self.dim - self.nearest)]),)


@pytest.mark.parametrize("broken", [ZeroAlwaysNear, WrongComplement])
def test_the_enumeration_catches_broken_nearest_vertices(broken):
    mechanism = broken(dim=3, epsilon=math.log(4), nearest=1)
    mechanism.__dict__["_is_near"] = Coin(Fraction(4, 4 + 5))
    laws = [law(lambda rng, x=x: int(mechanism.randomize(x, 1.0, rng)[0][0])) for x in VECTORS[:70]]
    with pytest.raises(ZeroDivisionError):
        largest_ratio(laws)


def test_the_enumeration_catches_a_symbol_that_is_never_perturbed():
    class Stays(Coin):
        def draw(self, choices):
            return super().draw(choices) | (choices.path[0] == 1)  # the first choice is the rounding

    scalar = ScalarDP(1.0, math.log(2), 1)
    scalar._stays = Stays(Fraction(2, 3))
    laws = [law(lambda rng, value=value: scalar.privatize(value, rng)) for value in (0.0, 1.0)]
    with pytest.raises(ZeroDivisionError):
        largest_ratio(laws)


MAGNITUDES = [np.array(m, np.float32) for m in itertools.product((0, 1, 2), repeat=4)]


def test_top_sets_have_their_size_whatever_the_ties():
    """Lemma L1."""
    for magnitudes in MAGNITUDES:
        order = ranking(magnitudes)
        assert sorted(order.tolist()) == [0, 1, 2, 3]
        for count in (1, 2, 3):
            assert sorted(largest(magnitudes, count).tolist()) == sorted(order[:count].tolist())


@pytest.mark.parametrize("top", [1, 2, 3])
def test_top_set_by_enumeration(top):
    """Theorem L2, for one pick and for two."""
    gain = 3
    selection = TopSet(4, top, math.log(gain))
    selection._is_top = coin(selection._is_top, Fraction(gain * top, 4 - top))
    for picks in (1, 2):
        laws = [
            law(lambda rng, m=m, picks=picks: tuple(selection.choose(m, picks, rng).tolist()))
            for m in MAGNITUDES[:: picks**3]
        ]
        assert all(sum(found.values()) == 1 for found in laws)
        assert largest_ratio(laws) <= gain**picks
    assert (
        largest_ratio([law(lambda rng, m=m: tuple(selection.choose(m, 1, rng))) for m in MAGNITUDES]) == gain
    )
