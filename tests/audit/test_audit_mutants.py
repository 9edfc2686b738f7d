"""Mechanisms, schemes and generators that are broken on purpose are caught by the checks designed for them.

The audits are restricted to the steps that find the mutant. Departures of the sampler that are too small for
an audit are left to tests/mechanisms, which compare the sampler's tables with the exact law.
"""

import re

import mutants
import pytest
import sparse_mutants as sparse
from subjects import PAPER, broken, caught, remade, subject

from sqsgd import Rng, secure_rng, seeded_rng
from sqsgd.audit import Subject, distinguishing
from sqsgd.audit.noise import Key, generator_check, key_check, key_of

RATIO, SAMPLED = "likelihood ratios, small budgets", "likelihood ratios, real budget"
BOUNDS, TALLY, OUTPUTS = "distinguishing reports", "tally of all pairs", "distribution of all outputs"
CODES, NOISE, MESSAGES = "distribution of the codes", "noise", "messages"
CHECKS = {
    "likelihood ratio, all outputs": RATIO,
    "densities add up to one": RATIO,
    "likelihood ratio, real budget": SAMPLED,
    "distinguishing reports, budget 4": BOUNDS,
    "law of all outputs": OUTPUTS,
    "law of the number of matches": CODES,
    "places of the matches": CODES,
    "runs of matches": CODES,
    "codes of the others": CODES,
    "law of the norm symbol": CODES,
}
"""The step of a check; those of noise are about noise or generators, all others about messages."""


def step_of(check):
    return CHECKS.get(check) or (NOISE if re.search("noise|generator|random", check) else MESSAGES)


def assert_caught(make, names, **changes):
    """By the checks of these names, in the steps that have them; reuse of noise shows in few reports."""
    steps = {step_of(name) for name in names}
    changes = {"trials": 1000} | changes if steps == {NOISE} else changes
    assert names <= caught(make, *steps, **changes)


def paper(change, **options):
    return broken(change, "sqsgd-paper", **(options or PAPER))


MECHANISMS = {
    broken(mutants.Understated): {"likelihood ratio, all outputs", "likelihood ratio, real budget"},
    broken(mutants.NormNotCounted): {"likelihood ratio, real budget"},
    paper(mutants.threshold_off_by_one): {"law of the number of matches"},
    paper(mutants.first_places): {"places of the matches", "runs of matches", "law of all outputs"},
    paper(mutants.one_run): {"runs of matches"},
    paper(mutants.next_codes): {"codes of the others", "law of all outputs"},
    broken(mutants.norm_without_noise): {
        "law of the norm symbol", "law of all outputs", "distinguishing reports, budget 4",
    },
    broken(mutants.NormInClear): {"law of the norm symbol"},
    broken(mutants.OneInClear): {"places of the matches"},
    broken(mutants.Sometimes): {"law of the number of matches"},
    broken(mutants.Parity): {"law of the norm symbol"},
    broken(mutants.LargestKept): {"places of the matches"},
    broken(mutants.NothingInClear): {"noise of two reports"},
    broken(mutants.Repeating): {"noise of two reports", "noise comes from the generator"},
    remade(mutants.PublicNoise): {"noise of two reports"},
    remade(mutants.SixteenBits): {"random bits per report"},
    remade(mutants.RoundSeven): {"noise of two reports"},
    broken(mutants.ExtraFloats): {"columns have a density"},
    paper(mutants.ExtraCodes, levels=2, rule="optimal"): {
        "columns have a density", "densities add up to one",
    },
    paper(mutants.LowBits): {"law of all outputs", "law of the number of matches"},
    remade(mutants.Leaking): {"coordinates that are not sent", "places of the matches"},
    remade(mutants.Longer): {"message is its columns"},
    remade(mutants.InPadding): {"message is its columns"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "names"), MECHANISMS.items(), ids=lambda each: getattr(each, "__name__", "")
)
def test_broken_mechanisms_and_schemes_are_caught(make, names):
    assert_caught(make, names)


def test_a_keep_that_is_too_large_is_caught():
    """In the density and the sampler, or in the sampler alone, where the density is still correct."""
    ratios = {"likelihood ratio, all outputs", "likelihood ratio, real budget"}
    bound = {"distinguishing reports, budget 4"}  # with 2,500 trials it is only three deviations above 4
    assert_caught(broken(mutants.keeps_too_often), ratios | bound, trials=6000)
    found = caught(broken(mutants.sampler_keeps_too_often), RATIO, BOUNDS, OUTPUTS, trials=6000)
    assert found >= {"law of all outputs"} | bound
    assert all(name.startswith(("law of all outputs", "distinguishing")) for name in found)


def test_only_what_is_broken_is_caught(monkeypatch):
    """A full audit of a correct scheme, of one that only draws needlessly, and of one that remembers."""
    monkeypatch.setattr(distinguishing, "_FEWEST", 40)
    assert caught(paper(mutants.rewritten_rightly), trials=1000) == set()
    assert caught(broken(mutants.Careless), NOISE, OUTPUTS, MESSAGES, trials=1000) == {"global generators"}
    assert caught(remade(mutants.Remembering), trials=1000) == {"noise of two rounds"}


# ---------------------------------------------------------------- many at once, and rare sides

EIGHT, AT_ONCE = "law of all outputs, budget 8", "law of all outputs, many at once, budget "


@pytest.mark.parametrize(
    ("change", "name", "checks"),
    [
        (mutants.NeverFar, "privunit-index", {EIGHT, f"{AT_ONCE}8"}),
        (mutants.NeverFarAtOnce, "privunit-index", {f"{AT_ONCE}8"}),
        (mutants.never_low, "privunit-inf", {EIGHT, f"{AT_ONCE}8"}),
        (lambda mechanism: None, "privunit-index", set()),
        (lambda mechanism: None, "privunit-inf", set()),
        (lambda mechanism: None, "sqsgd-stateless", set()),
        (lambda mechanism: None, "vqsgd", set()),
    ],
)
def test_a_side_that_is_rare_and_never_drawn_is_missed(change, name, checks):
    """At epsilon 400 nobody could tell; the same code runs where one report in 200 is of this side.

    The schemes as they are draw it: a program that is wrong in this way fails here.
    """
    assert caught(broken(change, name), OUTPUTS, trials=10_000) == checks


def test_two_percent_more_epsilon_in_a_sampler_are_caught():
    """By the many reports that are drawn at once, of an audit of the default length."""
    names = caught(broken(mutants.TwoPercent, "privunit-index"), OUTPUTS, trials=20_000)
    assert f"{AT_ONCE}4" in names


def test_noise_that_large_batches_repeat_is_caught():
    assert_caught(remade(mutants.LargeBatchesRepeat), {"noise of two batches"}, trials=1000, dim=1000)


def test_parts_of_batches_with_few_keys_are_caught(monkeypatch):
    monkeypatch.setattr(Rng, "child", mutants.few_children)
    assert generator_check(subject("sqsgd")).outcome == "violated"


# ---------------------------------------------------------------- infinite epsilon at a few inputs


@pytest.mark.parametrize(
    ("change", "name", "budget", "trials", "inputs"),
    [
        (mutants.ZeroIsNear, "privunit-index", 4.0, 10_000, {"zero"}),
        (mutants.symbol_zero_in_clear, "sqsgd", 0.5, 4000, {"zero", "a billionth of the bound"}),
        (mutants.norm_in_clear, "sqsgd", 0.5, 4000,
         {"length 0.6 to 0.65 of the bound", "length 0.65 to 0.7 of the bound"}),
    ],
)  # fmt: skip
def test_infinite_epsilon_at_a_few_inputs_is_caught(change, name, budget, trials, inputs):
    """At less than the default length, and the pair that is named holds one; correct schemes pass."""
    finding = tallied(broken(change, name), budget, trials=trials)
    assert finding.outcome == "violated"
    assert tallied(broken(lambda mechanism: None, name), budget, trials=1500).outcome == "passed"
    assert finding.details["unlikely"] in inputs or "a millionth" in finding.details["unlikely"]


def tallied(make, budget, **sizes):
    """The tally of a default audit, at one of its budgets."""
    (finding,) = distinguishing.tallies(Subject(name="broken", make=make, budgets=(budget,), **sizes))
    return finding


# ---------------------------------------------------------------- generators


@pytest.mark.parametrize("key", mutants.KEYS)
def test_keys_that_can_be_guessed_are_caught(key):
    """By what the operating system was asked for; the generator claims to protect."""
    assert key_of(secure_rng) == Key(read=32, repeats=True, bits=256)
    make_key, read, bits = mutants.KEYS[key]
    noise = mutants.keyed(make_key)
    assert noise().protects
    found = key_of(noise)
    assert found.read == read
    assert found.repeats == (bits is not None)
    assert bits is None or found.bits == bits
    assert (key_check(subject("sqsgd", noise=noise)).outcome == "passed") == (bits in (128, 256))


@pytest.mark.parametrize(
    "noise",
    [mutants.keyed(mutants.short_key), lambda: Rng(secure_rng().word() & 0x3FFFF)],
    ids=["hashed to a short key", "few states"],
)
def test_generators_with_few_states_are_caught_by_repeats(noise):
    """Two of 13,000 fresh generators are the same.

    A default audit makes 260,000 and misses 2^32 keys with probability exp(-260,000² / 2^33) = 0.0004. Here
    2^20 keys are missed with probability exp(-80).
    """
    assert generator_check(subject("sqsgd", noise=noise)).outcome == "violated"
    hashed = noise().protects  # flipped bits of a key show nothing behind a hash
    assert not hashed or key_check(subject("sqsgd", noise=noise)).outcome == "passed"


def test_a_seeded_generator_for_every_report_is_caught():
    names = {"generator of clients", "noise of two generators", "noise of two reports"}
    assert_caught(broken(lambda mechanism: None), names, noise=lambda: seeded_rng(7), trials=1000)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_noise_that_a_fork_repeats_is_caught(monkeypatch):
    monkeypatch.setattr(Rng, "_after_fork", lambda self: None)
    monkeypatch.setattr(Rng, "_check_process", lambda self: None)
    names = {"noise of two generators", "noise of two reports"}
    assert_caught(broken(lambda mechanism: None), names, trials=1000)


# ---------------------------------------------------------------- sparse codes


DENSE_TRIALS = 20_000


def sparse_caught(make, *names, budget=4.0, trials=2000):
    return caught(make, *names, dim=4, bytes=1, epsilon=budget, budgets=(budget,), trials=trials)


def test_correct_sparse_codes_pass():
    """Where outputs can be listed, with a coin or a symbol for the norm, and where they cannot."""
    assert sparse_caught(sparse.dense(), CODES, budget=8.0, trials=DENSE_TRIALS) == set()
    for norm in (None, 0.5):
        assert sparse_caught(sparse.small(norm=norm), OUTPUTS, TALLY, budget=1.0, trials=1500) == set()


@pytest.mark.parametrize(
    ("kind", "norm"),
    [
        (sparse.one_lower, None),
        (sparse.no_wrong_signs, None),
        (sparse.wrong_signs_alone, None),
        (sparse.high_too_often, None),
        (sparse.LowPlaces, None),
        (sparse.SteepCoin, None),
        (sparse.SymbolOfMatches, 0.5),
    ],
)
def test_departures_from_the_density_are_caught(kind, norm):
    found = sparse_caught(sparse.small(kind, norm=norm), OUTPUTS)
    assert "law of all outputs" in found
    assert all(name.startswith("law of all outputs") for name in found)


@pytest.mark.parametrize(
    ("kind", "norm"), [(sparse.ZeroIsHigh, None), (sparse.SymbolInClear, 0.5)], ids=["zero", "symbol"]
)
def test_more_than_epsilon_at_a_few_inputs_is_caught(kind, norm):
    """By counting reports of all pairs of inputs; no density is asked."""
    assert sparse_caught(sparse.small(kind, norm=norm), TALLY, budget=0.5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (sparse.one_lower, "law of matches and wrong signs"),
        (sparse.no_wrong_signs, "law of matches and wrong signs"),
        (sparse.wrong_signs_alone, "law of matches and wrong signs"),
        (sparse.Sometimes, "law of matches and wrong signs"),
        (sparse.LargestFirst, "places of the matches"),
        (sparse.OthersBelow, "places and signs of the others"),
        (sparse.NormInClear, "law of the norm symbol"),
        (sparse.SymbolTells, "norm symbol and matches"),
    ],
)
def test_what_is_broken_where_outputs_cannot_be_listed_is_caught(kind, name):
    assert name in sparse_caught(sparse.dense(kind), CODES, budget=8.0, trials=DENSE_TRIALS)
