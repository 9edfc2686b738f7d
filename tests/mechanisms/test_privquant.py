"""PrivQuant's arguments, the errors for invalid ones, and the parameters that it chooses."""

import math

import numpy as np
import pytest
import reference
from refusing import refuse

from sqsgd import PrivQuant, Task, seeded_rng

Q = PrivQuant(8, 4, 5.0)
X = np.zeros(8, np.float32)
CODES = np.zeros(8, np.uint8)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"dim": 2**24 + 1}, "dim = 16777217"),
        ({"dim": 8.0}, r"dim = 8\.0"),
        ({"dim": True}, "dim = True"),
        ({"levels": 1}, "levels = 1"),
        ({"levels": 257}, "levels = 257"),
        ({"epsilon": 0.0}, "epsilon = 0"),
        ({"epsilon": -1.0}, "epsilon = -1"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"epsilon": "400"}, "epsilon = '400'"),
        ({"epsilon": None}, "epsilon = None"),
        ({"threshold": 0}, "threshold = 0"),
        ({"threshold": 9}, "threshold = 9"),
        ({"keep": 0.0}, r"keep = 0\.0"),
        ({"keep": 1.0}, r"keep = 1\.0"),
        ({"keep": math.nan}, "keep = nan"),
        ({"rule": "best"}, "rule = 'best'"),
        ({"rule": "paper", "keep": 0.5}, "rule = 'paper'"),
    ],
)
def test_privquant_arguments(changes, match):
    refuse(match, lambda: PrivQuant(**{"dim": 8, "levels": 4, "epsilon": 5.0, **changes}))


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (np.full(8, 4), "contains 4"),
        (np.full(8, -1), "contains -1"),
        (np.zeros(8), "dtype float64"),
        (np.zeros(9, int), r"shape \(9,\)"),
    ],
)
def test_codes(codes, match):
    refuse(match, lambda: Q.privatize(codes, seeded_rng(1)))
    refuse(match, lambda: Q.estimate(codes, 1.0))
    refuse(match, lambda: Q.log_density(codes, CODES))
    refuse(match, lambda: Q.log_density(CODES, codes))


def test_a_mechanism_checks_its_input():
    q, rng = PrivQuant(40, 2, 1.0), seeded_rng(1)
    refuse(r"x has shape \(4,\)", lambda: q.randomize(np.zeros(4, np.float32), 1.0, rng))
    refuse("bound = nan", lambda: q.randomize(np.zeros(40, np.float32), math.nan, rng))
    refuse("bound = 0", lambda: q.randomize(np.zeros(40, np.float32), 0.0, rng))
    refuse("private generator", lambda: q.randomize(np.zeros(40, np.float32), 1.0, None))
    refuse("NaN or infinity", lambda: q.randomize(np.full(40, np.nan, np.float32), 1.0, rng))


def test_parameters_that_leave_nothing_of_x():
    refuse("threshold = 2000", lambda: PrivQuant(2000, 256, 0.01, threshold=2000))


def test_generators():
    for wrong in (None, np.random.default_rng(1), 7):
        refuse("private generator", lambda wrong=wrong: Q.quantize(X, 1.0, wrong))
        refuse("private generator", lambda wrong=wrong: Q.privatize(CODES, wrong))


@pytest.mark.parametrize("epsilon", [390.0, 400.0, 2000.0])
def test_keep_is_never_one_and_drop_keeps_its_digits(epsilon):
    for rule in ("optimal", "paper"):
        q = PrivQuant(512, 2, epsilon, rule=rule)
        assert 0.0 < q.keep < 1.0
        assert q.drop < 1e-15
        assert q.epsilon <= epsilon
    paper = PrivQuant(512, 2, 390.0, rule="paper")
    assert math.isclose(paper.drop, math.exp(-39) / (1 + math.exp(-39)), rel_tol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 17, 512, 5000, 1 << 20, 1 << 24])
@pytest.mark.parametrize("levels", [2, 3, 256])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 400.0, 1e5])
def test_the_whole_range_of_parameters(dim, levels, epsilon):
    q = PrivQuant(dim, levels, epsilon)
    assert q.epsilon == epsilon
    assert 1 <= q.threshold <= dim
    assert 0.0 < q.keep < 1.0
    assert 0.0 < q.scale <= 1.0
    high, low = q.law.log_densities
    assert 0.0 < high - low <= epsilon
    assert high - low >= epsilon - 1e-9 * (epsilon + dim)


def test_overrides():
    free = PrivQuant(64, 4, 20.0)
    assert PrivQuant(64, 4, 20.0, threshold=free.threshold).scale == free.scale
    fixed = PrivQuant(64, 4, threshold=free.threshold, keep=free.keep)
    assert math.isclose(fixed.epsilon, 20.0, rel_tol=1e-9)
    assert fixed.epsilon <= 20.0
    kept = PrivQuant(64, 4, 20.0, keep=0.9)
    assert kept.epsilon <= 20.0 < PrivQuant(64, 4, threshold=kept.threshold + 1, keep=0.9).epsilon
    with pytest.raises(ValueError, match="above epsilon = 19"):
        PrivQuant(64, 4, 19.0, threshold=free.threshold, keep=free.keep)


def test_the_papers_rule_is_the_corrected_one():
    q = PrivQuant(512, 16, 400.0, rule="paper")
    assert math.isclose(math.log(q.keep / q.drop), 40.0, rel_tol=1e-12)
    high, low = reference.side_sizes(512, 16, q.threshold)
    next_high, next_low = reference.side_sizes(512, 16, q.threshold + 1)
    assert math.log(low / high) <= 360.0 < math.log(next_low / next_high)
    with pytest.raises(ValueError, match="no threshold from 1 to 1"):
        PrivQuant(1, 16, 1.0, rule="paper")


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, "1", None])
def test_bounds(bound):
    refuse("bound = ", lambda: Q.quantize(X, bound, seeded_rng(1)))
    refuse("bound = ", lambda: Q.estimate(CODES, bound))
    refuse("bound = ", lambda: Q.variance(X, bound))
    refuse("bound = ", lambda: Task(round=0, client=0, seed=0, dim=8, bound=bound))


@pytest.mark.parametrize("levels", [2, 5, 256])
def test_values_outside_are_clamped(levels):
    """With 18 coordinates: sixteen are rounded at a time and the rest one by one."""
    q, rng = PrivQuant(18, levels, 20.0), seeded_rng(1)
    far = np.array(3 * [-1e13, -7.0, -0.5, 0.5, 7.0, 1e13], np.float32)
    for _ in range(50):
        assert q.quantize(far, 0.5, rng).tolist() == 3 * [*3 * [0], *3 * [levels - 1]]
