"""The inputs of the tally reach every length and every branch."""

from itertools import pairwise

import numpy as np
import pytest
from subjects import subject

from sqsgd import SCHEMES, make_scheme
from sqsgd.audit._tally_inputs import tally_inputs

PRIVATE = [
    name for name in SCHEMES if make_scheme(name, dim=64, epsilon=8.0, bytes=64).privacy.notion == "local"
]


@pytest.mark.parametrize("name", PRIVATE)
def test_the_inputs_reach_every_length(name):
    """Zero, both sides of a millionth, every twentieth of the bound and beyond; all different."""
    small = subject(name).small(4.0)
    inputs = tally_inputs(small, np.random.default_rng(1))
    sizes = np.array([np.linalg.norm(each.image) / small.task.bound for each in inputs])
    assert len(inputs) >= 35
    assert sizes.min() == 0
    assert ((sizes > 9e-7) & (sizes < 1e-6)).any()
    assert ((sizes > 1e-6) & (sizes < 1.1e-6)).any()
    assert sizes.max() > 20
    bands = sorted(each.band for each in inputs if each.band is not None)
    assert bands[0][0] == 0
    assert bands[-1][1] == 5
    assert all(low[1] == high[0] for low, high in pairwise(bands))
