"""The central guarantee in a summary: of the users who reported, in the order that counts, or not at all."""

import json
from fractions import Fraction

import pytest

from sqsgd import central_guarantee, make_scheme
from sqsgd.runs.once_summary import DELTA, about_once

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
    assert "central (0.57, 1e-6) for whoever sees only the models, if the operator" in known.sentence
    assert found["central_assumptions"] == list(known.assumptions)
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


def test_a_seeded_order_is_told_with_the_number():
    found = about(1500, 1500, seeded=True)
    assert found["order_seeded"] is True
    assert found["central_note"].endswith("would guarantee with a secret order and secure noise)")
    assert "seeded" not in about(1500, 1500)["central_note"]


@pytest.mark.parametrize(
    ("changes", "counts", "reason"),
    [
        ({}, (), "no report had another to hide behind"),
        ({}, (1,), "no report had another to hide behind"),
        ({"order": "round"}, (1500, 1), "no report had another to hide behind"),
        ({"slots": 1502}, (1500, 1), "no report had another to hide behind"),
        ({}, (2,), "for 2 users nothing smaller is certified"),
        ({"order": ""}, (1500,), "order = '' must be one of run, round"),
        (
            {"scheme": make_scheme("privunit", dim=100, epsilon=4.0, bytes=32)},
            (1500,),
            "real arithmetic only",
        ),
        ({"scheme": make_scheme("fedsgd", dim=100)}, (1500,), "no pure local guarantee"),
        ({"scheme": make_scheme("cpsgd", dim=10, epsilon=4.0, bytes=50)}, (1500,), "no pure local guarantee"),
        (
            {"scheme": make_scheme("sqsgd", dim=1000, epsilon=4.0, bytes=8, code="signs")},
            (1500,),
            "keeps a residual",
        ),
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


def test_what_is_shown_is_not_below_what_is_certified():
    found = about(1500, 1500)
    shown = found["central_note"].partition("central (")[2].partition(",")[0]
    assert Fraction(shown) >= Fraction(found["central_epsilon"])
