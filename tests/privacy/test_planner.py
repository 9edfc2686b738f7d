"""The planner: its predictions hold, its choice is the best, its warnings appear when they should."""

import json
import math

import numpy as np
import pytest

from sqsgd import make_scheme, seeded_rng
from sqsgd.privacy import planner
from sqsgd.privacy.planner import (
    automatic_scheme,
    least_reports,
    outlook,
    plan,
    stateless_choices,
)


def error_over_symbols(scheme, vectors, tasks, rng):
    """N |mean of the estimates - mean|², averaged over the norm symbols, whose rare jumps few rounds show.

    An estimate is n v for a symbol's norm n and the codes' direction v, and both are independent:
    E|Σ (n v - x)|² = |Σ (E[n] v - x)|² + Σ Var(n) |v|². tests/mechanisms/test_scalardp.py checks Var(n).
    """
    norm, error, jumps = getattr(scheme.mechanism, "norm", None), np.zeros(scheme.dim), 0.0
    for x, task in zip(vectors, tasks, strict=True):
        columns = scheme.randomize(x, task, rng)
        if norm is None:
            error += scheme.decode(scheme.seal(columns, task), task) - x
            continue
        sent = x
        for transform in scheme.transforms:
            sent = transform.forward(sent, task)
        size = min(float(np.linalg.norm(sent.astype(float))) / task.bound, 1.0)
        top = scheme.seal((columns[0], np.array([norm.levels], np.uint8)), task)
        direction = scheme.decode(top, task) / norm.estimate(norm.levels)
        error += size * direction - x
        jumps += norm.variance(size) * float(direction @ direction)
    return (float(error @ error) + jumps) / len(tasks)


@pytest.mark.parametrize(
    ("dim", "epsilon", "size", "clients"),
    [(1024, 60.0, 64, 5), (512, 2500.0, 512, 3), (5000, 400.0, 256, 4)],
)
def test_predictions_hold_for_the_mean_over_clients(dim, epsilon, size, clients):
    """Within three standard errors and 1 %, because rotated coordinates are not quite Gaussian."""
    chosen = plan(dim=dim, epsilon=epsilon, bytes=size, clients=clients)
    scheme = make_scheme("sqsgd-stateless", dim=dim, epsilon=epsilon, bytes=size)
    rng, numbers, errors = seeded_rng(4), np.random.default_rng(2), []
    for round in range(400):
        x = numbers.standard_normal((clients, dim)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        tasks = scheme.tasks(round=round, clients=range(clients), seed=1, bound=1.0)
        errors.append(error_over_symbols(scheme, x, tasks, rng))
    mean, deviation = np.mean(errors), np.std(errors) / len(errors) ** 0.5
    assert deviation < 0.015 * mean
    assert abs(mean - chosen.nmse) < 3 * deviation + 0.01 * mean
    assert chosen.nmse_mean == chosen.nmse / clients


def test_the_plan_is_what_training_uses():
    chosen = plan(dim=119850, epsilon=400.0, bytes=256, clients=10)
    scheme = make_scheme("sqsgd-stateless", dim=119850, epsilon=400.0, bytes=256)
    law = scheme.mechanism.law
    assert (chosen.code, chosen.levels, chosen.coordinates) == ("sparse", 3, law.size)
    assert (law.near, law.count, law.threshold) == (chosen.near, chosen.count, chosen.threshold)
    assert (law.keep, scheme.mechanism.scale) == (chosen.keep, chosen.scale)
    assert scheme.privacy.epsilon == chosen.epsilon == 400.0
    assert (scheme.code_bits, scheme.bits // 8) == (chosen.bits, chosen.message_bytes)
    many = plan(dim=256, epsilon=4000.0, bytes=512)
    quantizer = make_scheme("sqsgd-stateless", dim=256, epsilon=4000.0, bytes=512).mechanism.quantizer
    assert (many.code, quantizer.levels, quantizer.dim) == ("levels", many.levels, many.coordinates)
    assert (quantizer.threshold, quantizer.keep, quantizer.scale) == (many.threshold, many.keep, many.scale)


def warned(words, **budget):
    return any(words in warning for warning in plan(**budget).warnings)


def test_warnings_appear_when_they_should():
    usual = {"dim": 119850, "epsilon": 400.0, "bytes": 256}
    assert warned("nearly in the clear", dim=512, epsilon=400.0, bytes=64)
    assert not warned("nearly in the clear", **usual)
    assert warned("nearly in the clear", dim=64, epsilon=4000.0, bytes=128)
    assert warned("nothing is guaranteed about the direction of the full vector", **usual, rounds=100_000)
    assert not warned("the full vector", **usual)
    assert warned("membership", **usual)
    assert not warned("membership", **{**usual, "epsilon": 1.0})


@pytest.mark.parametrize("dim", [1, 2, 3, 100, 2**31])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 400.0, 1e5])
@pytest.mark.parametrize("size", [1, 8, 2**11])
def test_the_ends_of_every_range(dim, epsilon, size):
    """No number is missing, no limit is beaten, and the plan can be written as JSON."""
    chosen = plan(dim=dim, epsilon=epsilon, bytes=size, clients=2**40, rounds=2**40)
    assert 0 < chosen.nmse < math.inf
    assert chosen.epsilon <= epsilon
    assert chosen.optimum_ratio >= 1
    json.dumps(chosen.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("dim", "epsilon", "size", "best"),
    [(3920, 8.0, 64, "privunit-index"), (3920, 2.0, 2, "privunit-index"), (3920, 400.0, 512, None)],
)
def test_the_best_stateless_scheme_has_the_least_error_or_nearly_and_then_the_fewest_bytes(
    dim, epsilon, size, best
):
    """Of equal errors and sizes, as in runs with one report per user, the faster scheme is first."""
    ways = stateless_choices(dim=dim, epsilon=epsilon, bytes=size)
    assert len(ways) >= 2
    for way in ways:
        scheme = make_scheme(way.name, dim=dim, epsilon=epsilon, bytes=size)
        assert not scheme.keeps_state
        assert (way.nmse, way.message_bytes) == (scheme.nmse, scheme.bits // 8)
    exact = [way for way in ways if way.arithmetic == "exact"]
    close = [way for way in exact if way.nmse <= 1.03 * min(each.nmse for each in exact)]
    assert ways[0] == min(close, key=lambda way: way.message_bytes)
    assert ways[0].name == best if best else ways[0].name != "privunit-index"
    assert plan(dim=dim, epsilon=epsilon, bytes=size).stateless == tuple(ways)


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 20.0, 100.0, 400.0])
def test_auto_never_chooses_real_arithmetic(epsilon):
    """privunit has the least error from about 20 on; it is listed, last, and must be asked for by name."""
    ways = stateless_choices(dim=119850, epsilon=epsilon, bytes=256)
    name, options = automatic_scheme(dim=119850, epsilon=epsilon, bytes=256)
    assert options == {}
    assert make_scheme(name, dim=119850, epsilon=epsilon, bytes=256).privacy.arithmetic == "exact"
    assert name == ways[0].name
    assert [way.arithmetic for way in ways] == ["exact", "exact", "real"]
    assert ways[0].nmse <= 1.03 * ways[1].nmse
    advice = plan(dim=119850, epsilon=epsilon, bytes=256).recommendation
    assert (advice.scheme, advice.message_bytes) == (name, ways[0].message_bytes)
    assert all(way.name in advice.reason for way in ways[1:])


def test_auto_refuses_where_only_real_arithmetic_fits(monkeypatch):
    monkeypatch.setattr(planner, "STATELESS", ("privunit",))
    with pytest.raises(ValueError, match="'privunit' must be asked for by name"):
        automatic_scheme(dim=100, epsilon=8.0, bytes=8)


@pytest.mark.parametrize(
    ("name", "epsilon", "rounds", "reached"),
    [("sqsgd", 0.1, 600, 12.3), ("sqsgd", 1.0, 600, 69.0), ("sqsgd-stateless", 2.0, 50, 36.4),
     ("vqsgd", 8.0, 50, 16.8), ("cpsgd", 0.5, 50, 14.6), ("ldp-fed", 8.0, 50, 47.9),
     ("privunit", 8.0, 50, 65.7), ("fedsel", 1.0, 50, 23.5), ("fedsel", 4.0, 50, 45.8)],
)  # fmt: skip
def test_it_is_given_where_runs_learned_little_or_nothing(name, epsilon, rounds, reached):
    """A linear model on the embedded digits with ten clients."""
    scheme = make_scheme(name, dim=7_840, epsilon=epsilon, bytes=256 if name == "privunit" else 64)
    words = outlook(scheme, 10 * rounds)
    needed = least_reports(scheme, scheme.first_bound)
    assert bool(words) is (reached < 35)
    assert not words or f"at least {math.ceil(needed):,} are needed" in words


def test_users_who_report_once():
    """A softmax on soft-hog features of MNIST."""
    for users, epsilon, reached in (
        (1000, 1.0, 14.9),
        (1000, 4.0, 54.9),
        (4000, 0.25, 9.0),
        (4000, 2.0, 67.1),
    ):
        scheme = make_scheme("privunit-index", dim=3_920, epsilon=epsilon, bytes=48)
        assert bool(outlook(scheme, users, softmax=True)) is (reached < 20)
