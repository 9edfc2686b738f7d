"""Default learning rates: what they depend on, the noise that they leave, and what they let a model learn."""

import itertools
import json
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from quadratic import Quadratic, after, settings

from sqsgd import SCHEMES, make_scheme
from sqsgd.training import rates

OWN = ("sqsgd-record",)  # has a rule of its own: tests/training/test_record_runs.py
PRIVATE = [name for name in SCHEMES if name not in (*OWN, "fedsgd", "qsgd", "terngrad", "dgc")]


GRID = tuple(round(step * 10.0**power, 6) for power in range(-5, 3) for step in (1, 3))


def made(name, epsilon=40.0, dim=5000, bytes=128, **options):
    return make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes, **options)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != "fedsel"])
def test_the_rate_falls_with_the_noise_whatever_the_scheme(name):
    """But for fedsel, which sends fewer coordinates where it has less to spend, each at the same noise."""
    schemes = [made(name, epsilon) for epsilon in (10.0, 40.0, 400.0)]
    rule = [rates.learning_rate(scheme, 10) for scheme in schemes]
    assert rule == sorted(rule)
    assert 0 < rule[0] < rates.learning_rate(schemes[0], 1000)


@pytest.mark.parametrize("name", ["piecewise", "ldp-fed", "ldp-fl"])
def test_the_rate_allows_for_gradients_longer_than_the_bound(name):
    """Their noise grows with them: three times as long, it moves a weight by 0.07 in all rounds."""
    scheme = made(name, 100.0)
    energy = (3 * scheme.first_bound) ** 2 * scheme.nmse_at(3.0) / scheme.dim
    rate = rates.learning_rate(scheme, 10, rounds=200)
    assert rate * (energy / 10 * 200 / 3) ** 0.5 == pytest.approx(0.07)
    assert scheme.nmse_at(3.0) * 9 > scheme.nmse


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
        ("vqsgd", 20.0, 0.04),
    ],
)
def test_the_noise_of_all_rounds_moves_a_weight_by_the_same_whatever_the_budget(name, epsilon, noise):
    """Measured: the deviation that the noise alone gives each weight."""
    scheme = make_scheme(name, dim=200, epsilon=epsilon, bytes=8)
    rate = rates.learning_rate(scheme, 4, rounds=300, bound=0.5)
    chosen = settings(lr=rate, bound=0.5, rounds=300, decay="linear")
    _, state = after(300, scheme, chosen, Nothing())
    assert state.weights.std() == pytest.approx(noise, rel=0.15)


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize(("rule", "noise"), [("softmax", 1.4), ("pretrained", 0.7)])
def test_the_rate_for_a_softmax_keeps_its_final_noise_whatever_the_budget(rule, noise, epsilon):
    class Once(Nothing):
        clients = 1200

        def cohort(self, round):
            return range(200 * round, 200 * (round + 1))

    scheme = make_scheme("privunit-index", dim=200, epsilon=epsilon)
    rate = rates.softmax_rate(scheme, clients=200, rounds=6, bound=0.5, rule=rule)
    _, state = after(6, scheme, settings(lr=rate, bound=0.5, rounds=6, decay="linear"), Once())
    assert state.weights.std() == pytest.approx(noise, rel=0.25)


def test_every_default_on_digits_is_within_two_points_of_the_best_of_a_grid():
    """Of the runs in docs/assets/default-rates.json, which ``benchmarks/default_rates.py`` made.

    The accuracy at the default is interpolated between the recorded rates next to it. The runs of
    ``sqsgd-stateless`` had a bound of 1; its step in units of the bound is the same today.
    """
    recorded = {}
    kept = Path(__file__).parents[2] / "docs/assets/default-rates.json"
    for key, found in json.loads(kept.read_text()).items():
        arm, epsilon, rate, _ = key.split(" | ")
        recorded.setdefault((arm, float(epsilon)), {}).setdefault(float(rate), []).append(found["accuracy"])
    adaptive = {"sqsgd-paper adaptive": ("sqsgd-paper", {"adaptive": True})}
    arms = {name: (name, {}) for name in SCHEMES if name not in OWN} | adaptive
    worse = {}
    for (arm, (name, options)), epsilon in itertools.product(arms.items(), (400.0, 100.0, 40.0)):
        scheme = make_scheme(name, dim=119_850, epsilon=epsilon, bytes=256, **options)
        runs = recorded[arm, epsilon if scheme.privacy.is_private else math.inf]
        accuracies = {rate: fmean(found) for rate, found in sorted(runs.items())}
        best = max(accuracies[rate] for rate in GRID if rate in accuracies)
        bound = 1.0 if name == "sqsgd-stateless" else None
        rate = rates.learning_rate(scheme, 10, rounds=200, bound=bound)
        assert min(accuracies) <= rate <= max(accuracies)
        reached = np.interp(math.log(rate), np.log(list(accuracies)), list(accuracies.values()))
        if reached < best - 0.02 - 1e-9:
            worse[arm, epsilon] = (rate, reached, best)
    assert worse == {}
