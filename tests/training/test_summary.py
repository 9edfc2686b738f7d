"""What a run reached, promised, sent and took; and the central guarantee, or that there is none."""

import json
from fractions import Fraction

import pytest
from tiny_runs import prepared

from sqsgd import central_guarantee, make_scheme
from sqsgd.training.summary import DELTA, Headline, about_once

ERROR = Headline(name="RMSE", better="lower")


INDEX = make_scheme("privunit-index", dim=3920, epsilon=4.0)


def lines(*counts):
    return [{"clients": count} for count in counts]


def about(*counts, scheme=INDEX, order="run", seeded=False, slots=None):
    return about_once(scheme, order, lines(*counts), seeded=seeded, slots=slots)


def test_the_order_over_the_run_counts_all_who_reported():
    found = about(1500, 0, 1500, 1400)  # a round was lost
    known = central_guarantee(INDEX, 4400, DELTA)
    assert (found["users"], found["fewest_users"], found["central_users"]) == (4400, 1400, 4400)
    assert (found["central_epsilon"], found["central_delta"]) == (known.epsilon, 1e-6)
    assert found["central_order"] == found["order"] == "run"
    assert found["central_note"] == known.sentence
    assert "central (0.57, 1e-6) against readers of the models, if the operator" in known.sentence
    assert found["central_assumptions"] == list(known.assumptions)
    shown = found["central_note"].partition("central (")[2].partition(",")[0]
    assert Fraction(shown) >= Fraction(found["central_epsilon"])
    json.dumps(found, allow_nan=False)


def test_the_order_within_rounds_counts_the_smallest_round():
    found = about(1500, 1400, 1500, order="round")
    assert found["central_epsilon"] == central_guarantee(INDEX, 1400, DELTA).epsilon
    assert (found["central_order"], found["central_users"]) == ("round", 1400)
    assert "the order of the 1,400 users of a round" in found["central_note"]
    assert found["central_epsilon"] > about(1500, 1400, 1500)["central_epsilon"]


def test_empty_slots_leave_the_order_within_rounds():
    """A node that was away in some rounds had its slot, if it reported, in another one."""
    full, missing = about(1500, 1500, slots=3000), about(1500, 1499, slots=3000)
    assert (full["central_order"], full["central_users"]) == ("run", 3000)
    assert (missing["order"], missing["central_order"], missing["central_users"]) == ("run", "round", 1499)
    assert about(1500, 1499)["central_order"] == "run"  # users of a simulation do not come and go


@pytest.mark.parametrize(
    ("changes", "counts", "reason"),
    [
        ({}, (1,), "no report had another to hide behind"),
        ({"order": "round"}, (1500, 1), "no report had another to hide behind"),
        ({"slots": 1502}, (1500, 1), "no report had another to hide behind"),
        ({}, (2,), "for 2 users nothing smaller is certified"),
        ({"order": ""}, (1500,), "order = '' must be one of run, round"),
        ({"scheme": make_scheme("privunit", dim=100, epsilon=4.0, bytes=32)}, (1500,), "real arithmetic"),
        ({"scheme": make_scheme("cpsgd", dim=10, epsilon=4.0, bytes=50)}, (1500,), "no pure local guarantee"),
        ({"scheme": make_scheme("sqsgd", dim=99, epsilon=4.0, bytes=8, code="signs")}, (1500,), "residual"),
        ({"scheme": make_scheme("sqsgd-stateless", dim=100, epsilon=400.0, bytes=64)}, (10**6,), "nothing"),
    ],
    ids=str,
)
def test_no_number_where_none_holds(changes, counts, reason):
    found = about(*counts, **changes)
    assert found["central_epsilon"] is None
    assert "central_delta" not in found
    assert found["central_note"].startswith("none: ")
    assert reason in found["central_note"]


LINE = {
    "clients": 4, "epsilon": 60.0, "epsilon_total": 60.0, "bytes_up": 19, "bytes_down": 180, "seconds": 2.0,
    "seconds_gradient": 1.0, "seconds_encode": 0.5, "seconds_aggregate": 0.25,
}  # fmt: skip


def summary(folder, *lines, **changes):
    run = prepared(folder / "run", **changes)
    return run._summary([{**LINE, **line} for line in lines])


def test_the_last_accuracy_counts_and_the_largest_message(tmp_path):
    found = summary(
        tmp_path, {"accuracy": 0.75, "test_loss": 0.5}, {"bytes_up": 36, "refused": 2},
        {"accuracy": 0.5, "test_loss": 1.0, "epsilon_total": 120.0, "refused": 1}, {"seconds": 4.0}, rounds=4,
    )  # fmt: skip
    assert (found["accuracy"], found["best_accuracy"], found["test_loss"]) == (0.5, 0.75, 1.0)
    assert (found["bytes_up"], found["bytes_up_ratio"]) == (36, 4 * 36 / 36)
    assert (found["seconds"], found["share_gradient"], found["share_aggregate"]) == (10.0, 0.4, 0.1)
    assert (found["refused"], found["rounds"], found["finished"]) == (3, 4, True)
    assert found["epsilon_all_rounds"] == 240.0
