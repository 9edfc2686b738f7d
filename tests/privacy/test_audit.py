"""True schemes pass; every scheme can be audited; what an audit says is what it found."""

import itertools
import json
import math
from functools import partial

import numpy as np
import pytest

from sqsgd import SCHEMES, make_scheme
from sqsgd.privacy.audit import Finding, Subject, audit
from sqsgd.privacy.audit.certain import certain_vectors
from sqsgd.privacy.audit.findings import Audit
from sqsgd.privacy.audit.law import match_probabilities, with_doubt
from sqsgd.privacy.audit.ratio import worst_of
from sqsgd.privacy.audit.statistics import g_test
from sqsgd.privacy.audit.subject import forward, preimage, task_for
from sqsgd.privquant import PrivQuant

MANDATORY = ("ratio", "distinguish", "law", "noise", "message", "reconstruct")


def subject(name, options=None, **changes):
    sizes = {
        "dim": 1000,
        "epsilon": 100.0,
        "bits": 512,
        "budgets": (4.0,),
        "exact_budgets": (4.0,),
        "trials": 1000,
    }
    return Subject(name=name, make=partial(make_scheme, name, **(options or {})), **{**sizes, **changes})


@pytest.mark.parametrize("name", SCHEMES)
def test_true_schemes_pass(name):
    found = audit(subject(name), inversion=False)
    assert not found.violated
    json.dumps(found.to_dict(), allow_nan=False)
    promise = make_scheme(name, dim=1000, epsilon=100.0, bits=512).privacy
    assert (found.epsilon, found.notion) == (promise.epsilon, promise.notion)
    tried = {finding.check for finding in found.findings if finding.outcome == "passed"}
    if promise.notion == "local":
        assert tried == set(MANDATORY)
    elif promise.notion == "central":
        assert tried == set(MANDATORY) - {"reconstruct"}
    else:
        assert found.verdict.startswith(f"NOTHING TO AUDIT: {name} promises nothing. This is not a pass")
        assert (found.result, found.passed) == ("nothing to audit", False)
        assert tried <= {"noise", "message"}
        return
    assert (found.result, found.passed) == ("kept", True)


@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
        ("ldp-fl", {"per_weight": True}, {}),
        ("sqsgd-paper", {"adaptive": True, "norm_epsilon": 1.0, "levels": 3}, {}),
        ("sqsgd", {"levels": 4, "reach": 1.5}, {}),
        ("sqsgd", {}, {"dim": 1, "bits": 8}),
        ("sqsgd", {}, {"dim": 300, "epsilon": 400.0}),  # padded, and sent all but in clear
        ("privunit", {"levels": 5}, {"dim": 5, "epsilon": 400.0, "bits": 64}),
    ],
)
def test_unusual_ones_pass_too(name, options, changes):
    found = audit(subject(name, options, **changes), inversion=False)
    assert found.passed, found.violated


def test_a_per_weight_promise_is_not_tried_as_one_for_the_vector():
    """Vectors that differ in all weights are told apart by more than the ε of one weight, and may be."""
    small = subject("ldp-fl", {"per_weight": True}).small(4.0)
    pair, _ = worst_of(subject("ldp-fl", {"per_weight": True}), small)
    assert np.count_nonzero(pair.first != pair.second) == 1
    assert pair.ratio == pytest.approx(4.0, abs=1e-9)


def test_the_worst_pair_spends_all_of_epsilon():
    for name in ("sqsgd", "privunit-inf", "piecewise"):
        case = subject(name)
        pair, off = worst_of(case, case.small(4.0))
        assert pair.ratio == pytest.approx(4.0, abs=1e-9)
        assert off < 1e-9


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless", "sqsgd-paper", "privunit-inf"])
def test_certain_vectors_are_rounded_to_the_codes_that_they_say(name):
    case = subject(name)
    scheme, vectors = case.scheme, [*certain_vectors(case)]
    assert len(vectors) == 8
    for vector in vectors:
        codes = scheme.mechanism.quantizer.quantize(
            forward(scheme, vector.x, vector.task),
            {"sqsgd-paper": vector.task.bound}.get(name, 1e-9 * vector.task.bound),
            case.noise(),
        )
        if name == "privunit-inf":  # clamped to one bit, whatever the range
            codes = np.where(codes > 0, 1, 0)
        assert np.array_equal(codes, vector.codes)


def test_the_law_of_the_matches_adds_up():
    law = match_probabilities(subject("sqsgd-paper").scheme.mechanism.quantizer)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless", "vqsgd"])
def test_preimages(name):
    scheme = subject(name).scheme
    task = task_for(scheme, 3)
    y = np.random.default_rng(0).standard_normal(scheme.mechanism.dim).astype(np.float32)
    assert np.allclose(forward(scheme, preimage(scheme, y, task), task), y, atol=1e-4)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="trials = 10 "):
        subject("sqsgd", trials=10)
    with pytest.raises(ValueError, match="seed = -1"):
        subject("sqsgd", seed=-1)


def test_the_verdict_names_what_is_broken():
    findings = (
        Finding(check="law", name="one", outcome="violated", sentence="."),
        Finding(check="law", name="two", outcome="passed", sentence="."),
        Finding(check="law", name="three", outcome="not applicable", sentence=".", measured=float("inf")),
    )
    found = Audit(
        scheme="s",
        dim=1,
        epsilon=float("inf"),
        notion="local",
        message_bytes=1,
        trials=1,
        seed=0,
        findings=findings,
    )
    assert not found.passed
    assert found.verdict == "1 of 2 checks broke the promise: one."
    assert found.to_dict()["findings"][2]["measured"] == found.to_dict()["epsilon"] == "infinity"


def test_the_law_of_the_matches_where_one_code_may_be_another():
    """Every output of a quantiser of 4 codes of 3 levels, when the first one is 1 in place of 0."""
    quantizer = PrivQuant(4, 3, 5.0)
    seen = np.zeros(5)
    for at in range(4):
        codes = np.zeros(4, np.uint8)
        codes[at] = 1
        for out in itertools.product(range(3), repeat=4):
            matches = out.count(0)
            seen[matches] += math.exp(quantizer.log_density(np.array(out, np.uint8), codes)) / 4
    law = match_probabilities(quantizer)
    np.testing.assert_allclose(with_doubt(law, 3, 1.0), seen, rtol=1e-9)
    np.testing.assert_allclose(with_doubt(law, 3, 0.25), 0.75 * law + 0.25 * seen, rtol=1e-9)


def test_one_match_less_than_can_be_is_no_alarm_where_a_code_may_be_another():
    """It was: once in some hundred audits of schemes with more than two levels."""
    case = subject("sqsgd-paper")
    quantizer = case.scheme.mechanism.quantizer
    law, doubt = match_probabilities(quantizer), max(vector.doubt for vector in certain_vectors(case))
    assert 1e-6 < doubt < 0.02
    seen = np.random.default_rng(0).multinomial(199, law / law.sum())
    seen[quantizer.threshold - 1] += 1
    assert g_test(seen, 200 * law)[0] < 1e-6
    assert g_test(seen, 200 * with_doubt(law, quantizer.levels, doubt))[0] > 1e-6
