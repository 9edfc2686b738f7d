"""docs/proofs: PiecewiseGrid and OrdinalChannel, in fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from enumeration import integers_below, law

from sqsgd.mechanisms import channels
from sqsgd.mechanisms.channels import PiecewiseGrid


def grid(steps, shift, window):
    """A channel with few cells: everything but the choice of the window is the code's own."""
    channel = PiecewiseGrid(steps + 1, 1.0)
    channel._shift, channel._step, channel._cells = shift, 1 << shift, steps << shift
    channel._window = window
    return channel


def weight(cell, code, step):
    """Lemma G2."""
    return max(0, 2 * step - abs(2 * cell + 1 - 2 * step * code))


def code_laws(steps, step, window):
    """Lemma G3: the law of the code for every start of the window."""
    cells = steps * step
    near, far = Fraction(cells - window, cells * window), Fraction(window, cells * (cells - window))
    return [
        {
            code: sum(
                (near if start <= cell < start + window else far)
                * Fraction(weight(cell, code, step), 2 * step)
                for cell in range(cells)
            )
            for code in range(steps + 1)
        }
        for start in range(cells - window + 1)
    ]


@pytest.mark.parametrize(
    ("steps", "shift", "window"), [(1, 2, 1), (2, 1, 1), (2, 2, 3), (3, 1, 2), (4, 0, 1)]
)
def test_the_code_has_the_law_of_the_lemmas(steps, shift, window, monkeypatch):
    """Lemmas G1 to G3: over every random choice of ``randomize``, for every start."""
    monkeypatch.setattr(channels, "integers_below", integers_below)
    channel = grid(steps, shift, window)
    free = channel._cells - window
    for start, expected in enumerate(code_laws(steps, 1 << shift, window)):
        place = np.array([min(1.0, (start + 0.5) / free)])
        assert channel._starts(place).tolist() == [start]
        found = law(lambda rng, place=place: int(channel.randomize(place, rng)[0]))
        assert found == {code: chance for code, chance in expected.items() if chance}


@pytest.mark.parametrize(
    ("steps", "step"), [*itertools.product((1, 2, 3, 4, 5), (1, 2, 4)), (2, 8), (3, 8), (7, 2)]
)
def test_the_end_codes_have_the_largest_ratio(steps, step):
    """Theorem G4, for every window shorter than half of the range."""
    for window in range(1, (steps * step + 1) // 2):
        laws = code_laws(steps, step, window)
        assert all(sum(found.values()) == 1 for found in laws)
        ratios = [
            max(found[code] for found in laws) / min(found[code] for found in laws)
            for code in range(steps + 1)
        ]
        odds, width = Fraction(steps * step - window, window), Fraction(window, step)
        if steps == 1:
            expected = odds
        else:
            expected = odds**2 if width >= 1 else 1 + (odds**2 - 1) * (2 * width - width**2)
        assert max(ratios) == ratios[0] == ratios[-1] == expected
        channel = grid(steps, step.bit_length() - 1, window)
        assert math.isclose(float(channel._log_ratio()), math.log(expected), rel_tol=1e-12)
        assert Fraction(math.exp(channel.epsilon)) >= expected * (1 - Fraction(1, 2**50))


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 27.0, 5000.0])
@pytest.mark.parametrize("alphabet", [2, 3, 4, 5, 16, 257, 2**19 + 3, 2**20 + 2, 2**32])
def test_the_window_and_the_integers_of_real_grids(alphabet, epsilon):
    """W < F/2 and Lemma G1, for grids of every size: int64 holds what the code puts into it."""
    channel = PiecewiseGrid(alphabet, epsilon)
    cells, window, step = channel._cells, channel._window, channel._step
    assert 2 * window < cells
    if channel._starts(np.array([0.5])).dtype != object:
        assert 2 * cells + 2 * step - 2 < 2**63
    assert channel.epsilon <= epsilon
