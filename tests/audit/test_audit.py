"""Correct schemes pass, every scheme can be audited, and the result states what was found."""

import json

import pytest
from subjects import subject

from sqsgd import SCHEMES, make_scheme
from sqsgd.audit import audit

MANDATORY = ("ratio", "distinguish", "tally", "law", "noise", "message", "reconstruct")


@pytest.mark.parametrize("name", SCHEMES)
def test_correct_schemes_pass(name):
    found = audit(subject(name), inversion=False)
    assert not found.violated
    json.dumps(found.to_dict(), allow_nan=False)
    promise = make_scheme(name, dim=1000, epsilon=100.0, bytes=64).privacy
    assert (found.epsilon, found.notion) == (promise.epsilon, promise.notion)
    tried = {finding.check for finding in found.findings if finding.outcome == "passed"}
    if promise.notion == "local":
        assert tried == set(MANDATORY)
    elif promise.notion == "central":
        assert tried == set(MANDATORY) - {"reconstruct", "tally"}
    else:
        assert found.verdict.startswith(f"NOTHING TO AUDIT: {name} has no privacy guarantee. This is not")
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
        ("sqsgd", {"code": "sparse"}, {}),
        ("sqsgd-stateless", {"code": "sparse"}, {"epsilon": 8.0}),
        ("sqsgd", {}, {"dim": 1, "bits": 8}),
        ("sqsgd", {}, {"dim": 300, "epsilon": 400.0}),  # padded, and sent almost in the clear
        ("privunit", {"levels": 5}, {"dim": 5, "epsilon": 400.0, "bits": 64}),
    ],
)
def test_unusual_schemes_pass(name, options, changes):
    found = audit(subject(name, options, **changes), inversion=False)
    assert found.passed, found.violated
