"""Means and intervals of repetitions, against SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from sqsgd.numerics.intervals import mean_interval, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 50, 400])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.995])
def test_quantiles_are_those_of_student(freedom, probability):
    assert math.isclose(t_quantile(probability, freedom), stats.t.ppf(probability, freedom), rel_tol=1e-6)


def test_intervals_hold_the_mean_as_often_as_they_say():
    numbers = np.random.default_rng(1).standard_normal((4000, 3))
    held = [abs(mean) <= half for mean, half in map(mean_interval, numbers.tolist())]
    assert abs(np.mean(held) - 0.95) < 4 * (0.05 * 0.95 / 4000) ** 0.5


def test_one_value_has_no_interval_and_none_no_mean():
    assert mean_interval([3.0])[0] == 3.0
    assert math.isnan(mean_interval([3.0])[1])
    assert mean_interval([3.0, 4.0])[0] == 3.5
    assert math.isnan(mean_interval([3.0, 4.0])[1])  # t would be 12.7
    assert mean_interval([3.0, 4.0, 5.0])[1] == pytest.approx(4.302653 / math.sqrt(3))
    assert math.isnan(mean_interval([])[0])
