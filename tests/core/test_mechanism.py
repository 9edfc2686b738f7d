"""What a mechanism does unless it says otherwise."""

import numpy as np
import pytest
from small_parts import Whole, X

from sqsgd import seeded_rng


def test_defaults_of_a_mechanism():
    mechanism, total = Whole(3), np.ones(3, np.float32)
    columns = mechanism.randomize(X, 1.0, seeded_rng(1))
    mechanism.add_estimate(columns, 1.0, 0.5, total)
    assert total.tolist() == (1 + 0.5 * X).tolist()
    assert mechanism.magnitude(columns, 1.0) is None
    with pytest.raises(NotImplementedError):
        mechanism.coordinates(columns)
