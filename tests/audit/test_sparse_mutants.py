"""Broken sparse codes are caught by the audit; the correct ones pass the same checks."""

from __future__ import annotations

import pytest
import sparse_mutants as broken

from sqsgd.audit import Subject, steps

LAW, TALLY, CODES = "distribution of all outputs", "tally of all pairs", "distribution of the codes"


def violated(make, *names, budget=4.0, trials=4000, dim=4, size=1):
    """The findings of these steps that are violations."""
    case = Subject(
        name="sparse", make=make, dim=dim, bytes=size, epsilon=budget, budgets=(budget,), trials=trials
    )
    run = [step for step in steps(case, inversion=False) if step.name in names]
    return {found.name for step in run for found in step.findings(case) if found.outcome == "violated"}


@pytest.mark.parametrize("norm", [None, 0.5], ids=["coin", "symbol"])
def test_the_correct_mechanism_passes(norm):
    assert violated(broken.small(norm=norm), LAW, TALLY, budget=1.0) == set()


@pytest.mark.parametrize(
    ("kind", "norm"),
    [
        (broken.one_lower, None),
        (broken.no_wrong_signs, None),
        (broken.wrong_signs_alone, None),
        (broken.high_too_often, None),
        (broken.LowPlaces, None),
        (broken.SteepCoin, None),
        (broken.SymbolOfMatches, 0.5),
    ],
)
def test_departures_from_the_density_are_caught(kind, norm):
    assert violated(broken.small(kind, norm=norm), LAW) == {"law of all outputs"}


@pytest.mark.parametrize(
    ("kind", "norm"), [(broken.ZeroIsHigh, None), (broken.SymbolInClear, 0.5)], ids=["zero", "symbol"]
)
def test_more_than_epsilon_at_a_few_inputs_is_caught(kind, norm):
    """By counting reports of all pairs of inputs; no density is asked, and none is wrong elsewhere."""
    make = broken.small(kind, norm=norm)
    assert violated(make, LAW, TALLY, budget=0.5) == {"tally of all pairs, budget 0.5"}


# ---------------------------------------------------------------- where outputs cannot be listed


def test_the_correct_mechanism_passes_where_outputs_cannot_be_listed():
    assert violated(broken.dense(), CODES, budget=8.0, trials=20_000) == set()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (broken.one_lower, "law of matches and wrong signs"),
        (broken.no_wrong_signs, "law of matches and wrong signs"),
        (broken.wrong_signs_alone, "law of matches and wrong signs"),
        (broken.Sometimes, "law of matches and wrong signs"),
        (broken.LargestFirst, "places of the matches"),
        (broken.OthersBelow, "places and signs of the others"),
        (broken.NormInClear, "law of the norm symbol"),
        (broken.SymbolTells, "norm symbol and matches"),
    ],
)
def test_what_is_broken_where_outputs_cannot_be_listed_is_caught(kind, name):
    assert name in violated(broken.dense(kind), CODES, budget=8.0, trials=20_000)
