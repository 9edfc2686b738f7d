"""Default learning rates: what they depend on, and the noise that they leave."""

import numpy as np
import pytest
from quadratic import Quadratic, after, settings

from sqsgd import make_scheme
from sqsgd.federated import rates
from sqsgd.federated.optimizers import Optimizer


def test_the_rule_for_the_learning_rate_falls_with_the_noise():
    for code, most in (("signs", 0.25), ("sparse", 1.25)):
        schemes = [
            make_scheme("sqsgd", dim=5000, epsilon=epsilon, bits=1024, code=code)
            for epsilon in (1.0, 4.0, 40.0, 400.0)
        ]
        rule = [rates.learning_rate(scheme, 10) for scheme in schemes]
        assert rule == sorted(rule)
        assert rule[0] < 0.5 * most
        assert rule[-1] <= most
        assert rule[0] < rates.learning_rate(schemes[0], 1000)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_reports_of_one_length_leave_the_same_noise_whatever_the_budget(epsilon):
    """Measured: the deviation that the noise alone gives each weight, for zero gradients."""
    scheme = make_scheme("sqsgd-stateless", dim=200, epsilon=epsilon, bits=64)
    rate = rates.learning_rate(scheme, 4, rounds=300, bound=0.5)
    chosen = settings(optimizer=Optimizer(kind="sgd", rate=rate), bound=0.5, decay_rounds=300)

    class Nothing(Quadratic):
        dim, clients, once = 200, 4, False

        def gradients(self, weights, round, cohort):
            return ((0.0, np.zeros(200, np.float32)) for _ in cohort)

    before = np.zeros(200)
    _, state = after(300, scheme, chosen, Nothing())
    assert (state.weights - before).std() == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize(("pretrained", "noise"), [(False, 1.4), (True, 0.7)])
def test_the_rate_for_a_softmax_keeps_its_final_noise_whatever_the_budget(pretrained, noise):
    """Measured: the deviation that the noise alone gives each weight, for zero gradients."""
    for epsilon in (2.0, 8.0):
        scheme = make_scheme("privunit-index", dim=200, epsilon=epsilon)
        rate = rates.softmax_rate(scheme, clients=200, rounds=6, bound=0.5, pretrained=pretrained)
        chosen = settings(optimizer=Optimizer(kind="sgd", rate=rate), bound=0.5, decay_rounds=6)

        class Nothing(Quadratic):
            dim, clients = 200, 1200

            def gradients(self, weights, round, cohort):
                return ((0.0, np.zeros(200, np.float32)) for _ in cohort)

            def cohort(self, round):
                return range(200 * round, 200 * (round + 1))

        _, state = after(6, scheme, chosen, Nothing())
        assert state.weights.std() == pytest.approx(noise, rel=0.25)
