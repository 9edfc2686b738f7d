"""Default learning rates: what they depend on, and the noise that they leave."""

import numpy as np
import pytest
from quadratic import Quadratic, after, settings

from sqsgd import make_scheme
from sqsgd.federated import rates
from sqsgd.federated.optimizers import Optimizer


def test_the_rule_for_the_learning_rate_falls_with_the_noise():
    rule = [
        rates.learning_rate(make_scheme("sqsgd", dim=5000, epsilon=epsilon, bits=1024), 10)
        for epsilon in (10.0, 40.0, 100.0, 400.0)
    ]
    assert rule == sorted(rule)
    assert rule[-1] < 0.25
    more = rates.learning_rate(make_scheme("sqsgd", dim=5000, epsilon=10.0, bits=1024), 1000)
    assert rule[0] < more


def test_the_rate_for_a_softmax_keeps_its_final_noise_whatever_the_budget():
    """Measured: the deviation that the noise alone gives each weight, for zero gradients."""
    for epsilon in (2.0, 8.0):
        scheme = make_scheme("privunit-index", dim=200, epsilon=epsilon)
        rate = rates.softmax_rate(scheme, clients=1200, rounds=6, bound=0.5, decay=True)
        chosen = settings(optimizer=Optimizer(kind="sgd", rate=rate), bound=0.5, decay_rounds=6)

        class Nothing(Quadratic):
            dim, clients = 200, 1200

            def gradients(self, weights, round, cohort):
                return ((0.0, np.zeros(200, np.float32)) for _ in cohort)

            def cohort(self, round):
                return range(200 * round, 200 * (round + 1))

        _, state = after(6, scheme, chosen, Nothing())
        assert state.weights.std() == pytest.approx(1.4, rel=0.25)
