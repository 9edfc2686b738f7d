"""Settings and states."""

import numpy as np
import pytest
from quadratic import settings
from sqsgd.training import Settings, initial_state

from sqsgd.federated.optimizers import Optimizer
from sqsgd.federated.order import seeded_order


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"bound": 0.0}, {"alpha": -1.0}, {"beta": 0.0}, {"workers": 0}]
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        settings(**wrong)


def test_public_weights_and_a_secret_order_exclude_each_other():
    """A user's weight would tell which slot is its own."""
    with pytest.raises(ValueError, match="which user fills a slot"):
        settings(order=seeded_order(10, 2, 1), weigh_by_size=True)


def test_the_first_state_starts_at_the_settings_bound():
    state = initial_state(np.zeros(3, np.float32), settings(bound=4.0))
    assert (state.round, state.bound, state.residuals, state.spent) == (0, 4.0, {}, {})


def test_who_draws_the_noise_has_no_default():
    """A training that forgets to say so must not draw its noise from the public seed."""
    optimizer = Optimizer(kind="sgd", rate=0.1)
    with pytest.raises(TypeError, match="secure"):
        Settings(seed=1, optimizer=optimizer)
    for unclear in (None, 1, "yes"):
        with pytest.raises(ValueError, match=r"secure = .* must be true or false"):
            Settings(seed=1, optimizer=optimizer, secure=unclear)
    assert Settings(seed=1, optimizer=optimizer, secure=False).secure is False
