"""The planner: its predictions hold, its choice is the best, and its warnings appear when they should."""

import itertools
import json
import math
import time

import numpy as np
import pytest

from sqsgd import Task, make_scheme, planner, seeded_rng
from sqsgd.planner import automatic_scheme, information_limit, plan, stateless_choices


@pytest.mark.parametrize(
    ("dim", "epsilon", "bits", "clients"),
    [(1024, 60.0, 512, 5), (2000, 20.0, 1024, 8), (512, 2500.0, 4096, 3), (5000, 400.0, 2048, 4)],
)
def test_predictions_hold_for_the_mean_over_clients(dim, epsilon, bits, clients):
    """Within three standard errors: 0.2 %, or more where rare jumps of the norm matter."""
    chosen = plan(dim=dim, epsilon=epsilon, bits=bits, clients=clients)
    scheme = make_scheme("sqsgd-stateless", dim=dim, epsilon=epsilon, bits=bits)
    rng, numbers, errors = seeded_rng(16), np.random.default_rng(2), []
    for round in range(1000):
        x = numbers.standard_normal((clients, dim)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        tasks = [Task(round=round, client=c, seed=1, dim=dim, bound=1.0) for c in range(clients)]
        reports = [(task, scheme.encode(vector, task, rng)) for task, vector in zip(tasks, x, strict=True)]
        error = scheme.aggregate(reports) - x.mean(axis=0)
        errors.append(clients * float(error @ error))  # each client's share of |x|² / N²
    mean, deviation = np.mean(errors), np.std(errors) / len(errors) ** 0.5
    assert abs(mean - chosen.nmse) < 3 * deviation
    if dim > chosen.coordinates:
        assert abs(mean - scheme.nmse) > 3 * deviation  # the effect of clamping the norm is visible
    assert chosen.nmse_mean == chosen.nmse / clients


def test_the_plan_is_what_training_uses():
    chosen = plan(dim=119850, epsilon=400.0, bits=2048, clients=10)
    scheme = make_scheme("sqsgd-stateless", dim=119850, epsilon=400.0, bits=2048)
    law = scheme.mechanism.law
    assert (chosen.code, chosen.levels, chosen.coordinates) == ("sparse", 3, law.size)
    assert (law.near, law.count, law.threshold) == (chosen.near, chosen.count, chosen.threshold)
    assert (law.keep, scheme.mechanism.scale) == (chosen.keep, chosen.scale)
    assert scheme.privacy.epsilon == chosen.epsilon == 400.0
    assert (scheme.code_bits, scheme.bits // 8) == (chosen.bits, chosen.message_bytes)
    many = plan(dim=256, epsilon=4000.0, bits=4096)
    quantizer = make_scheme("sqsgd-stateless", dim=256, epsilon=4000.0, bits=4096).mechanism.quantizer
    assert (many.code, quantizer.levels, quantizer.dim) == ("levels", many.levels, many.coordinates)
    assert (quantizer.threshold, quantizer.keep, quantizer.scale) == (many.threshold, many.keep, many.scale)


def test_many_levels_are_chosen_where_they_pay():
    assert plan(dim=256, epsilon=4000.0, bits=4096).levels > 8
    assert plan(dim=119850, epsilon=400.0, bits=2048).code == "sparse"


def test_a_billion_dimensions_take_less_than_a_second():
    started = time.process_time()
    chosen = plan(dim=10**9, epsilon=400.0, bits=2048, clients=100, rounds=1000)
    assert time.process_time() - started < 1.0
    assert chosen.coordinates == 2**24  # the most that sparse codes index


def warned(words, **budget):
    return any(words in warning for warning in plan(**budget).warnings)


def test_warnings_appear_when_they_should():
    usual = {"dim": 119850, "epsilon": 400.0, "bits": 2048}
    assert warned("nearly in the clear", dim=512, epsilon=400.0, bits=512)
    assert not warned("nearly in the clear", **usual)
    assert warned("nearly in the clear", dim=64, epsilon=4000.0, bits=1024)
    assert warned("nothing is guaranteed about the direction of the full vector", **usual, rounds=100_000)
    assert not warned("the full vector", **usual)
    assert warned("membership", **usual)
    assert not warned("membership", **{**usual, "epsilon": 1.0})


def test_the_information_limit():
    assert math.isclose(information_limit(400.0, 2048), 1 / (math.exp(800 / 2048) - 1))
    assert information_limit(1e5, 1) == 0.0
    assert plan(dim=119850, epsilon=400.0, bits=2048).information_ratio > 1


@pytest.mark.parametrize("dim", [1, 2, 3, 100, 2**31])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 400.0, 1e5])
@pytest.mark.parametrize("bits", [1, 64, 2**14])
def test_the_ends_of_every_range(dim, epsilon, bits):
    """No number is missing, no limit is beaten, and the plan can be written as JSON."""
    chosen = plan(dim=dim, epsilon=epsilon, bits=bits, clients=2**40, rounds=2**40)
    assert 0 < chosen.nmse < math.inf
    assert chosen.epsilon <= epsilon
    assert chosen.optimum_ratio >= 1
    assert chosen.information_ratio >= 1
    assert chosen.nmse <= 1.002 * min(each.nmse for each in chosen.alternatives)
    json.dumps(chosen.to_dict(), allow_nan=False)


def test_more_epsilon_is_never_worse():
    for dim, bits in ((3, 8), (119850, 2048)):
        errors = [plan(dim=dim, epsilon=epsilon, bits=bits).nmse for epsilon in (0.01, 0.3, 2, 30, 400, 5e3)]
        assert errors == sorted(errors, reverse=True)


def test_one_dimension_has_no_bound_on_the_cosine():
    """A guess at a sign is right half of the time, so no cosine below one can be guaranteed."""
    for statement in plan(dim=1, epsilon=0.5, bits=8, rounds=3).reconstruction:
        assert (statement.dimensions, statement.vacuous) == (1, True)
    block, full = plan(dim=1000, epsilon=0.5, bits=1).reconstruction
    assert (block.dimensions, block.vacuous) == (1, True)
    assert (full.dimensions, full.vacuous) == (1000, False)


def test_rough_predictions_have_a_warning():
    assert warned("predicted errors can be off", dim=1198, epsilon=400.0, bits=5)
    assert not warned("predicted errors can be off", dim=1198, epsilon=400.0, bits=64)


def test_more_coordinates_than_can_be_privatised():
    with pytest.raises(ValueError, match=r"use at most 16777216 bits \(2097152 bytes\)"):
        plan(dim=10**9, epsilon=1.0, bits=2**40)


def test_the_papers_settings_are_an_alternative():
    paper = plan(dim=119850, epsilon=400.0, bits=2048).paper
    assert (paper.levels, paper.coordinates) == (16, 512)
    assert paper.nmse > 2000
    assert plan(dim=300, epsilon=0.05, bits=512).paper is None  # its rule has no solution there


def test_it_can_be_written_as_json():
    values = json.loads(
        json.dumps(plan(dim=1000, epsilon=20.0, bits=256, rounds=3).to_dict(), allow_nan=False)
    )
    assert len(values["reconstruction"]) == 4
    assert values["alternatives"][0]["levels"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"bits": 0}, "bits = 0"),
        ({"clients": 0}, "clients = 0"),
        ({"rounds": 1.5}, "rounds"),
    ],
)
def test_invalid_budgets(change, message):
    with pytest.raises(ValueError, match=message):
        plan(**{"dim": 1000, "epsilon": 20.0, "bits": 256, **change})


@pytest.mark.parametrize(
    ("dim", "epsilon", "bits", "best"),
    [(3920, 8.0, 512, "privunit-index"), (3920, 2.0, 16, "privunit-index"), (3920, 400.0, 4096, None)],
)
def test_the_best_stateless_scheme_has_the_least_error_or_nearly_and_then_the_fewest_bytes(
    dim, epsilon, bits, best
):
    """Of equal errors and sizes, as in runs with one report per user, the faster scheme is first."""
    ways = stateless_choices(dim=dim, epsilon=epsilon, bits=bits)
    assert len(ways) >= 2
    for way in ways:
        scheme = make_scheme(way.name, dim=dim, epsilon=epsilon, bits=bits)
        assert not scheme.residual
        assert (way.nmse, way.message_bytes) == (scheme.nmse, scheme.bits // 8)
    exact = [way for way in ways if way.arithmetic == "exact"]
    close = [way for way in exact if way.nmse <= 1.03 * min(each.nmse for each in exact)]
    assert ways[0] == min(close, key=lambda way: way.message_bytes)
    assert ways[0].name == best if best else ways[0].name != "privunit-index"
    assert plan(dim=dim, epsilon=epsilon, bits=bits).stateless == tuple(ways)


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 100.0, 400.0])
def test_the_recommendation_is_what_auto_takes_and_has_the_fewest_bytes_near_the_least_error(epsilon):
    advice = plan(dim=119850, epsilon=epsilon, bits=2048).recommendation
    assert advice.scheme == automatic_scheme(dim=119850, epsilon=epsilon, bits=2048)
    assert advice.options == f"--scheme {advice.scheme} --epsilon {epsilon:g} --bytes 256"
    scheme = make_scheme(advice.scheme, dim=119850, epsilon=epsilon, bits=2048)
    best = plan(dim=119850, epsilon=epsilon, bits=2048).optimum
    assert advice.message_bytes == scheme.bits // 8
    assert advice.optimum_ratio == pytest.approx(scheme.nmse / best)
    assert f"error {scheme.nmse / best:.3g} times the optimum in {scheme.bits // 8} bytes" in advice.reason
    for name in {"privunit-index", "sqsgd-stateless", "privunit (real arithmetic only)"} - {advice.scheme}:
        assert name in advice.reason


def test_no_recommendation_where_only_real_arithmetic_fits(monkeypatch):
    monkeypatch.setattr(planner, "STATELESS", ("privunit",))
    assert plan(dim=100, epsilon=8.0, bits=64).recommendation is None


def test_an_error_far_below_the_optimum_of_floats_is_recommended_by_itself():
    advice = plan(dim=10, epsilon=1e5, bits=2048).recommendation
    assert advice.optimum_ratio == math.inf
    assert " times " not in advice.reason
    assert "inf" not in advice.reason


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 20.0, 100.0, 400.0])
def test_auto_never_chooses_real_arithmetic(epsilon):
    """privunit has the least error from about 20 on; it is listed, last, and must be asked for by name."""
    ways = stateless_choices(dim=119850, epsilon=epsilon, bits=2048)
    name = automatic_scheme(dim=119850, epsilon=epsilon, bits=2048)
    assert make_scheme(name, dim=119850, epsilon=epsilon, bits=2048).privacy.arithmetic == "exact"
    assert name == ways[0].name
    assert [way.arithmetic for way in ways] == ["exact", "exact", "real"]
    assert ways[0].nmse <= 1.03 * ways[1].nmse


def test_auto_refuses_where_only_real_arithmetic_fits(monkeypatch):
    monkeypatch.setattr(planner, "STATELESS", ("privunit",))
    with pytest.raises(ValueError, match="'privunit' must be asked for by name"):
        automatic_scheme(dim=100, epsilon=8.0, bits=64)


@pytest.mark.parametrize(("dim", "epsilon"), [(3920, 20.0), (119850, 40.0)])
def test_every_point_of_the_frontier_is_a_message_that_can_be_sent_and_improves(dim, epsilon):
    points = planner.frontier(dim=dim, epsilon=epsilon)
    assert len(points) > 1
    for before, after in itertools.pairwise(points):
        assert before.message_bytes < after.message_bytes
        assert after.nmse < 0.98 * before.nmse
    best = plan(dim=dim, epsilon=epsilon, bits=2048)
    assert points[-1].nmse < 1.025 * best.nmse
    assert points[-1].message_bytes <= best.message_bytes
