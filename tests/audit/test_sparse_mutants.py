"""Broken sparse codes are caught by the audit; the correct ones pass the same checks."""

from __future__ import annotations

import pytest
import sparse_mutants as broken

from sqsgd.audit import Subject, steps

LAW, TALLY = "distribution of all outputs", "tally of all pairs"


def violated(make, *names, budget=4.0, trials=4000):
    """The findings of these steps that are violations."""
    case = Subject(name="sparse", make=make, dim=4, epsilon=budget, budgets=(budget,), trials=trials)
    run = [step for step in steps(case, inversion=False) if step.name in names]
    return {found.name for step in run for found in step.findings(case) if found.outcome == "violated"}


@pytest.mark.parametrize("norm", [None, 1.0], ids=["coin", "symbol"])
def test_the_correct_mechanism_passes(norm):
    assert violated(broken.small(norm=norm), LAW, TALLY, "likelihood ratios, small budgets") == set()


@pytest.mark.parametrize(
    "kind",
    [
        broken.one_lower,
        broken.no_wrong_signs,
        broken.wrong_signs_alone,
        broken.high_too_often,
        broken.LowPlaces,
        broken.SteepCoin,
    ],
    ids=lambda kind: kind.__doc__,
)
def test_departures_from_the_density_are_caught(kind):
    assert violated(broken.small(kind), LAW) == {"law of all outputs"}


@pytest.mark.parametrize(
    ("kind", "norm"),
    [(broken.ZeroIsHigh, None), (broken.SymbolInClear, 1.0), (broken.SymbolOfMatches, 1.0)],
    ids=lambda each: getattr(each, "__doc__", ""),
)
def test_more_than_epsilon_is_caught_without_a_density(kind, norm):
    """By counting reports of pairs of inputs: the ratio is far beyond the guarantee."""
    assert violated(broken.small(kind, norm=norm), TALLY, budget=2.0) != set()
