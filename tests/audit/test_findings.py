"""Findings: what breaks a promise, and how an audit says so."""

import pytest

from sqsgd.audit import Finding
from sqsgd.audit.findings import Audit, judged, skipped, verdict


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
def test_only_a_promise_that_was_tried_and_held_is_kept(notion, outcomes, result):
    findings = [Finding(check="law", name="a", outcome=outcome, sentence=".") for outcome in outcomes]
    numbers = {"dim": 1, "epsilon": 1.0, "message_bytes": 1, "trials": 1, "seed": 0}
    found = Audit(scheme="s", notion=notion, findings=tuple(findings), **numbers)
    assert (found.result, found.passed) == (result, result == "kept")
    assert ("one report promises nothing" in found.verdict) == (notion == "central")


def test_what_cannot_be_measured_breaks_its_limit():
    assert [verdict(measured, 1.0) for measured in (0.9, 1.0, 1.1, float("nan"))] == [
        "passed",
        "passed",
        "violated",
        "violated",
    ]
    assert judged("law", "a", ".", measured=True, limit=0).outcome == "violated"
    assert skipped("law", "a", ".").outcome == "not applicable"
