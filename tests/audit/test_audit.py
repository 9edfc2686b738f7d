"""Correct schemes pass, every scheme can be audited, and the result states what was found."""

import json
import sys

import pytest
from subjects import subject

from sqsgd import SCHEMES, MalformedReport, make_scheme
from sqsgd.audit import Audit, Finding, Step, Subject, audit, distinguishing, steps
from sqsgd.audit.findings import by_test, judged, skipped

MANDATORY = {"ratio", "distinguish", "tally", "law", "noise", "message", "reconstruct"}
NUMBERS = {"scheme": "s", "dim": 1, "message_bytes": 1, "trials": 1, "seed": 0}


@pytest.fixture
def short_tallies(monkeypatch):
    monkeypatch.setattr(distinguishing, "_FEWEST", 40)


@pytest.mark.usefixtures("short_tallies")
@pytest.mark.parametrize("name", SCHEMES)
def test_correct_schemes_pass(name):
    found = audit(subject(name), inversion=False)
    assert not found.violated
    json.dumps(found.to_dict(), allow_nan=False)
    promise = make_scheme(name, dim=1000, epsilon=100.0, bytes=64).privacy
    assert (found.epsilon, found.notion) == (promise.epsilon, promise.notion)
    tried = {finding.check for finding in found.findings if finding.outcome == "passed"}
    if promise.notion == "none":
        assert found.verdict.startswith(f"NOTHING TO AUDIT: {name} has no privacy guarantee. This is not")
        assert (found.result, found.passed) == ("nothing to audit", False)
        assert tried <= {"noise", "message"}
    else:
        assert (found.result, found.passed) == ("kept", True)
        assert tried == MANDATORY - ({"reconstruct", "tally"} if promise.notion == "central" else set())


@pytest.mark.usefixtures("short_tallies")
@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
        ("ldp-fl", {"per_weight": True}, {}),
        ("sqsgd-paper", {"adaptive": True, "norm_epsilon": 1.0, "levels": 3}, {}),
        ("sqsgd", {"levels": 4, "reach": 1.5}, {}),
        ("sqsgd", {"code": "sparse"}, {}),
        ("sqsgd-stateless", {"code": "sparse"}, {"epsilon": 8.0}),
        ("sqsgd", {}, {"dim": 1, "bytes": 1}),
        ("sqsgd", {}, {"dim": 300, "epsilon": 400.0}),  # padded, and sent almost in the clear
        ("privunit", {"levels": 5}, {"dim": 5, "epsilon": 400.0, "bytes": 8}),
    ],
)
def test_unusual_schemes_pass(name, options, changes):
    found = audit(subject(name, options, **changes), inversion=False)
    assert found.passed, found.violated


# ---------------------------------------------------------------- steps


def test_a_scheme_that_refuses_its_own_messages_is_caught():
    def refuse(_subject):
        yield from ()
        raise MalformedReport("checksum", "the report is damaged")

    (finding,) = Step(name="noise", run=refuse).findings(subject("sqsgd"))
    assert finding.outcome == "violated"
    assert "damaged" in finding.sentence


def test_inversion_is_skipped_with_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqsgd.audit.inversion", None)
    (finding,) = steps(subject("sqsgd"))[-1].findings(subject("sqsgd"))
    assert finding.outcome == "not applicable"
    assert "sqsgd[train]" in finding.sentence


def test_inversion_is_skipped_without_parameters_for_the_model():
    """The model's gradient is longer than this scheme supports."""
    pytest.importorskip("torch")

    def make(*, dim, epsilon, bytes):
        if dim > 1000:
            raise ValueError(f"dim = {dim} is too long")
        return make_scheme("sqsgd", dim=dim, epsilon=epsilon, bytes=bytes)

    case = Subject(name="short", make=make, dim=1000, epsilon=100.0, bytes=64)
    (finding,) = steps(case)[-1].findings(case)
    assert finding.outcome == "not applicable"
    assert finding.sentence.endswith(" is too long.")


@pytest.mark.parametrize(
    ("name", "first", "count"),
    [
        ("sqsgd", "likelihood ratios, small budgets", 10),
        ("cpsgd", "the sum of reports", 5),
        ("fedsgd", "guarantee", 5),
    ],
)
def test_the_steps_depend_on_the_guarantee(name, first, count):
    tried = steps(subject(name), inversion=False)
    assert (tried[0].name, len(tried)) == (first, count)
    assert [step.name for step in tried[-4:]] == ["noise", "messages", "directions", "pictures"]
    (left_out,) = tried[-1].findings(subject(name))
    assert left_out.sentence == "Skipped as requested."


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("notion", "outcomes", "result"),
    [
        ("local", ["passed", "not applicable"], "kept"),
        ("local", ["passed", "violated", "not applicable"], "broken"),
        ("none", ["passed"], "nothing to audit"),
        ("none", ["violated"], "broken"),
        ("local", ["not applicable"], "nothing to audit"),
        ("central", ["passed"], "kept"),
    ],
)
def test_only_a_guarantee_that_withstood_a_check_is_kept(notion, outcomes, result):
    findings = tuple(Finding(check="law", name=each, outcome=each, sentence=".") for each in outcomes)
    found = Audit(notion=notion, epsilon=float("inf"), findings=findings, **NUMBERS)
    assert (found.result, found.passed) == (result, result == "kept")
    assert ("one report has none" in found.verdict) == (notion == "central")
    if len(outcomes) == 3:
        assert found.verdict == "1 of 2 checks broke the guarantee: violated."
    assert found.to_dict()["epsilon"] == "infinity"


def test_nan_violates_its_limit():
    nan = float("nan")
    cases = ((0.9, 0), (1.0, 0), (1.1, 0), (nan, 0), (1.1, 0.2))
    outcomes = [judged("law", "a", ".", measured, 1, slack=slack).outcome for measured, slack in cases]
    assert outcomes == ["passed", "passed", "violated", "violated", "passed"]
    assert [by_test("law", "a", ".", (p, 1)).outcome for p in (1.0, 1e-5, 1e-7, 0.0, nan)] == [
        *["passed"] * 2,
        *["violated"] * 3,
    ]
    assert judged("law", "a", ".", True, 0).outcome == "violated"
    assert skipped("law", "a", ".").outcome == "not applicable"
