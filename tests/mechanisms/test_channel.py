"""Uniform whole numbers, of any size."""

import numpy as np
import pytest
from reference import g_test

from sqsgd import seeded_rng
from sqsgd.mechanisms.channels import integers_below


@pytest.mark.parametrize("bound", [2, 3, 2**62 + 1, 2**63, 2**63 + 1, 10**40])
def test_integers_below_are_uniform(bound):
    drawn = integers_below(bound, 30_000, seeded_rng(3))
    assert 0 <= drawn.min() <= drawn.max() < bound
    cells = min(bound, 7)
    observed = np.bincount(np.array([int(number) * cells // bound for number in drawn]), minlength=cells)
    assert g_test(observed, np.full(cells, 30_000 / cells)) > 1e-6
