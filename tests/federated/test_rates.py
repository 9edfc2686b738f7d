"""Default learning rates: what they depend on, the noise that they leave, and what they let a model learn."""

import dataclasses
import math

import numpy as np
import pytest
from quadratic import Quadratic, after, settings

from sqsgd import SCHEMES, make_scheme
from sqsgd.federated import rates
from sqsgd.federated.optimizers import Optimizer

PRIVATE = [name for name in SCHEMES if name not in ("fedsgd", "qsgd", "terngrad", "dgc")]


def made(name, epsilon=40.0, dim=5000, bytes=128, **options):
    return make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes, **options)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != "fedsel"])
def test_the_rate_falls_with_the_noise_whatever_the_scheme(name):
    """But for fedsel, which sends fewer coordinates where it has less to spend, each at the same noise."""
    schemes = [made(name, epsilon) for epsilon in (10.0, 40.0, 400.0)]
    rule = [rates.learning_rate(scheme, 10) for scheme in schemes]
    assert rule == sorted(rule)
    assert 0 < rule[0] < rates.learning_rate(schemes[0], 1000)


@pytest.mark.parametrize("name", SCHEMES)
def test_no_first_step_is_longer_than_the_limit(name):
    """With all clients and all epsilon that there can be."""
    scheme = made(name, 1e4)
    rate = rates.learning_rate(scheme, 10**6)
    if scheme.follows_norms:
        assert rate <= 0.3
    elif not scheme.mechanism.bounds_coordinates:  # a range, which no gradient fills
        limit = 2.0 if scheme.mechanism.chooses else 1.25
        assert rate * scheme.first_bound * scheme.mechanism.longest <= limit + 1e-9


@pytest.mark.parametrize("name", ["piecewise", "ldp-fed", "ldp-fl"])
def test_the_rate_allows_for_gradients_longer_than_the_bound(name):
    """Their noise grows with them: three times as long, it moves a weight by 0.07 in all rounds."""
    scheme = made(name, 100.0)
    energy = (3 * scheme.first_bound) ** 2 * scheme.nmse_at(3.0) / scheme.dim
    rate = rates.learning_rate(scheme, 10, rounds=200)
    assert rate * (energy / 10 * 200 / 3) ** 0.5 == pytest.approx(0.07)
    assert scheme.nmse_at(3.0) * 9 > scheme.nmse


def test_only_reports_with_norms_and_those_without_noise_are_relative_to_the_vector():
    relative = {name for name in SCHEMES if made(name).follows_norms}
    assert relative == {"privunit", "privunit-g", "fedsgd", "qsgd", "terngrad", "dgc"}
    for name in ("sqsgd", "sqsgd-stateless"):
        assert made(name, code="signs").follows_norms


def test_more_rounds_take_smaller_steps_where_a_bound_decides_the_noise():
    scheme = made("vqsgd")
    long, short = (rates.learning_rate(scheme, 10, rounds=rounds) for rounds in (800, 200))
    assert long == pytest.approx(short / 2)
    assert rates.learning_rate(scheme, 10, bound=2.0) == pytest.approx(rates.learning_rate(scheme, 10) / 2)


class Nothing(Quadratic):
    """Clients whose gradients are zero, so that noise alone moves the weights."""

    dim, clients, once = 200, 4, False

    def gradients(self, weights, round, cohort):
        return ((0.0, np.zeros(200, np.float32)) for _ in cohort)


@pytest.mark.parametrize(
    ("name", "epsilon", "noise"),
    [
        ("sqsgd-stateless", 1.0, 0.1),
        ("sqsgd-stateless", 4.0, 0.1),
        ("privunit-index", 4.0, 0.07),
        ("sqkr", 4.0, 0.07),
        ("vqsgd", 20.0, 0.04),
    ],
)
def test_the_noise_of_all_rounds_moves_a_weight_by_the_same_whatever_the_budget(name, epsilon, noise):
    """Measured: the deviation that the noise alone gives each weight."""
    scheme = make_scheme(name, dim=200, epsilon=epsilon, bytes=8)
    rate = rates.learning_rate(scheme, 4, rounds=300, bound=0.5)
    chosen = settings(optimizer=Optimizer(kind="sgd", rate=rate), bound=0.5, decay_rounds=300)
    _, state = after(300, scheme, chosen, Nothing())
    assert state.weights.std() == pytest.approx(noise, rel=0.15)


@pytest.mark.parametrize(("pretrained", "noise"), [(False, 1.4), (True, 0.7)])
def test_the_rate_for_a_softmax_keeps_its_final_noise_whatever_the_budget(pretrained, noise):
    """Measured: the deviation that the noise alone gives each weight, for zero gradients."""
    for epsilon in (2.0, 8.0):
        scheme = make_scheme("privunit-index", dim=200, epsilon=epsilon)
        rate = rates.softmax_rate(scheme, clients=200, rounds=6, bound=0.5, pretrained=pretrained)
        chosen = settings(optimizer=Optimizer(kind="sgd", rate=rate), bound=0.5, decay_rounds=6)

        class Once(Nothing):
            clients = 1200

            def cohort(self, round):
                return range(200 * round, 200 * (round + 1))

        _, state = after(6, scheme, chosen, Once())
        assert state.weights.std() == pytest.approx(noise, rel=0.25)


def test_a_constant_rate_is_half_of_one_that_falls():
    about = {"clients": 10, "rounds": 50, "optimizer": "sgd", "softmax": False}
    falling, constant = (
        rates.bound_and_rate(made("vqsgd"), **about, decays=decays)[1] for decays in (True, False)
    )
    assert constant == falling / 2
    assert rates.bound_and_rate(made("vqsgd"), **about, decays=True, lr=0.7, bound=3.0) == (3.0, 0.7)


def test_changes_of_a_model_are_taken_whole_if_they_are_exact():
    """The app's own rate has shortened them."""
    assert rates.change_rate(made("fedsgd"), 10) == 1.0
    signs = made("sqsgd", code="signs")
    assert rates.change_rate(signs, 10) == pytest.approx(1 / (1 + signs.mechanism.relative_error(0.5) / 10))


def test_an_unknown_error_gives_a_rate_nevertheless():
    scheme = made("qsgd")
    unknown = dataclasses.replace(scheme)
    object.__setattr__(unknown, "nmse", math.nan)
    assert rates.learning_rate(unknown, 10) == 0.1
