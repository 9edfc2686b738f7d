"""Settings and states."""

import numpy as np
import pytest
from quadratic import settings

from sqsgd.federated import initial_state


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"bound": 0.0}, {"alpha": -1.0}, {"beta": 0.0}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        settings(**wrong)


def test_the_first_state_starts_at_the_settings_bound():
    state = initial_state(np.zeros(3, np.float32), settings(bound=4.0))
    assert (state.round, state.bound, state.residuals, state.spent) == (0, 4.0, {}, {})
