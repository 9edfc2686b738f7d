"""Broken mechanisms and generators that earlier audits missed; each is caught at the default length.

The audits here run the default number of trials, restricted to the step and the budget that find the
mutant. Four departures of the sampler are too small for an audit of this length (``mutants.UNSEEN``):
there the sampler's tables are compared with the exact law, in tests/mechanisms and tests/numerics.
"""

from __future__ import annotations

from functools import partial

import mutants
import pytest
from subjects import subject

from sqsgd import make_scheme, secure_rng
from sqsgd.audit import Subject, steps
from sqsgd.audit.noise_checks import _generators, _kind


def tallied(make, budget):
    """The tally of a default audit, at one of its budgets."""
    case = Subject(name="broken", make=make, budgets=(budget,))
    (step,) = (each for each in steps(case) if each.name == "tally of all pairs")
    (finding,) = step.findings(case)
    return finding


@pytest.mark.parametrize(
    ("change", "name", "budget", "inputs"),
    [
        (mutants.zero_is_near, "privunit-index", 4.0, {"zero"}),
        (mutants.symbol_zero_in_clear, "sqsgd", 0.5, {"zero", "a billionth of the bound"}),
        (
            mutants.norm_in_clear,
            "sqsgd",
            0.5,
            {"length 0.6 to 0.65 of the bound", "length 0.65 to 0.7 of the bound"},
        ),
    ],
)
def test_infinite_epsilon_at_a_few_inputs_is_caught(change, name, budget, inputs):
    """The excess is far beyond chance, and the pair that is named holds an input at which it happens."""
    finding = tallied(mutants.broken(change, name), budget)
    assert finding.outcome == "violated"
    assert finding.measured > finding.limit + 0.5
    assert finding.details["unlikely under"] in inputs or "a millionth" in finding.details["unlikely under"]


@pytest.mark.parametrize(("name", "budget"), [("privunit-index", 4.0), ("sqsgd", 0.5)])
def test_the_correct_counterparts_pass(name, budget):
    assert tallied(partial(make_scheme, name), budget).outcome == "passed"


@pytest.mark.parametrize("key", [each for each in mutants.KEYS if each != "32 random bytes hashed to 4"])
def test_keys_that_can_be_guessed_are_caught(key):
    """By what the operating system was asked for; the generator claims to protect."""
    noise = mutants.keyed(mutants.KEYS[key])
    assert noise().protects
    assert _kind(subject("sqsgd", noise=noise)).outcome == "violated"


def test_a_short_key_that_is_hidden_behind_a_hash_is_caught_by_repeats():
    """Every bit of 32 bytes matters, but few keys exist: two of many fresh generators are the same.

    A default audit makes 260,000 and misses 2^32 keys with probability exp(-260,000² / 2^33) = 0.0004. Here
    13,000 generators have 2^20 keys, which are missed with probability exp(-80).
    """

    def short():
        key = int.from_bytes(mutants.KEYS["32 random bytes hashed to 4"](), "little")
        return (key % 2**20).to_bytes(3, "little")

    case = subject("sqsgd", noise=mutants.keyed(short))
    assert _kind(case).outcome == "passed"
    assert _generators(case).outcome == "violated"


@pytest.mark.parametrize(
    "noise", [secure_rng, *(mutants.keyed(each) for each in mutants.RIGHT_KEYS.values())]
)
def test_keys_from_the_operating_system_pass(noise):
    finding = _kind(subject("sqsgd", noise=noise))
    assert finding.outcome == "passed", finding.sentence
