"""Correct schemes pass, every scheme can be audited, and the result states what was found."""

import json
import re

import pytest
from subjects import subject

from sqsgd import SCHEMES, MalformedReport, make_scheme
from sqsgd.audit import Audit, Finding, Step, audit, distinguishing, noise
from sqsgd.audit.checklist import gathered
from sqsgd.audit.findings import by_test, judged, page

MANDATORY = {"ratio", "distinguish", "tally", "law", "noise", "message", "reconstruct"}


@pytest.fixture(scope="module")
def generator():
    """What is found of the generator, once for all schemes."""
    return noise.generator_check(subject("sqsgd"))


@pytest.fixture
def short(monkeypatch, generator):
    monkeypatch.setattr(distinguishing, "_FEWEST", 40)
    monkeypatch.setattr(noise, "generator_check", lambda _subject: generator)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", SCHEMES)
def test_correct_schemes_pass(name):
    found = audit(subject(name))
    assert not found.violated
    json.dumps(found.to_dict(), allow_nan=False)
    promise = make_scheme(name, dim=1000, epsilon=100.0, bytes=64).privacy
    assert (found.epsilon, found.notion) == (promise.epsilon, promise.notion)
    tried = {finding.check for finding in found.findings if finding.outcome == "passed"}
    if promise.notion == "none":
        assert found.result == "nothing to audit"
        assert tried <= {"noise", "message"}
    else:
        assert found.passed
        absent = {"reconstruct", "tally"} if promise.notion in ("central", "record") else set()
        assert tried == MANDATORY - absent


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
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
    found = audit(subject(name, options, **changes))
    assert found.passed, found.violated


def test_a_scheme_that_refuses_its_own_messages_is_caught():
    def refuse(_subject):
        yield from ()
        raise MalformedReport("checksum", "the report is damaged")

    (finding,) = Step(name="noise", run=refuse).findings(subject("sqsgd"))
    assert finding.outcome == "violated"
    assert "damaged" in finding.sentence


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
    sizes = {"scheme": "s", "dim": 1, "message_bytes": 1, "trials": 1, "seed": 0}
    found = Audit(notion=notion, epsilon=float("inf"), findings=findings, **sizes)
    assert (found.result, found.passed) == (result, result == "kept")
    assert found.to_dict()["epsilon"] == "infinity"


def test_nan_violates_its_limit():
    nan = float("nan")
    cases = ((0.9, 0), (1.0, 0), (1.1, 0), (nan, 0), (1.1, 0.2))
    outcomes = [judged("law", "a", ".", measured, 1, slack=slack).outcome for measured, slack in cases]
    assert outcomes == ["passed", "passed", "violated", "violated", "passed"]
    tests = [by_test("a", ".", (p, 1)).outcome for p in (1.0, 1e-5, 1e-7, 0.0, nan)]
    assert tests == ["passed", "passed", "violated", "violated", "violated"]


def test_the_page_loads_nothing_and_escapes_what_it_shows():
    finding = Finding(check="law", name="<b>", outcome="violated", sentence="a & b", measured=1.5, limit=1.0)
    text = page(gathered(subject("sqsgd"), [finding]))
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert not re.search(r"https?://|@import|url\(", text)
