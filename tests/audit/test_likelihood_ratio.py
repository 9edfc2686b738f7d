"""The worst pairs of inputs reach the guaranteed ratio and respect the notion of neighbours."""

import numpy as np
import pytest
from subjects import subject

from sqsgd.audit.likelihood_ratio import worst_of


def test_per_weight_pairs_differ_in_one_weight():
    """Vectors that differ in all weights may exceed the ε of one weight."""
    small = subject("ldp-fl", {"per_weight": True}).small(4.0)
    pair, _ = worst_of(subject("ldp-fl", {"per_weight": True}), small)
    assert np.count_nonzero(pair.first != pair.second) == 1
    assert pair.ratio == pytest.approx(4.0, abs=1e-9)


def test_the_worst_pair_spends_all_of_epsilon():
    for name in ("sqsgd", "privunit-inf", "piecewise"):
        case = subject(name)
        pair, off = worst_of(case, case.small(4.0))
        assert pair.ratio == pytest.approx(4.0, abs=1e-9)
        assert off < 1e-9
