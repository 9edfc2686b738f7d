"""Findings: what violates a guarantee, and how an audit reports it."""

import pytest

from sqsgd.audit import Finding
from sqsgd.audit.findings import Audit, judged, skipped


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
    assert found.verdict == "1 of 2 checks broke the guarantee: one."
    assert found.to_dict()["findings"][2]["measured"] == found.to_dict()["epsilon"] == "infinity"


@pytest.mark.parametrize(
    ("notion", "outcomes", "result"),
    [
        ("local", ["passed", "not applicable"], "kept"),
        ("local", ["passed", "violated"], "broken"),
        ("none", ["passed"], "nothing to audit"),
        ("none", ["violated"], "broken"),
        ("local", ["not applicable"], "nothing to audit"),
        ("central", ["passed"], "kept"),
    ],
)
def test_only_a_guarantee_that_withstood_a_check_is_kept(notion, outcomes, result):
    findings = [Finding(check="law", name="a", outcome=outcome, sentence=".") for outcome in outcomes]
    numbers = {"dim": 1, "epsilon": 1.0, "message_bytes": 1, "trials": 1, "seed": 0}
    found = Audit(scheme="s", notion=notion, findings=tuple(findings), **numbers)
    assert (found.result, found.passed) == (result, result == "kept")
    assert ("one report has none" in found.verdict) == (notion == "central")


def test_nan_violates_its_limit():
    outcomes = [
        judged("law", "a", ".", measured=measured, limit=limit, slack=slack).outcome
        for measured, limit, slack in (
            (0.9, 1, 0),
            (1.0, 1, 0),
            (1.1, 1, 0),
            (float("nan"), 1, 0),
            (1.1, 1, 0.2),
        )
    ]
    assert outcomes == ["passed", "passed", "violated", "violated", "passed"]
    assert judged("law", "a", ".", measured=True, limit=0).outcome == "violated"
    assert skipped("law", "a", ".").outcome == "not applicable"
