"""Correct schemes pass, every scheme can be audited, and the result states what was found."""

import json
import re
import sys

import pytest
from subjects import subject

from sqsgd import SCHEMES, MalformedReport, make_scheme
from sqsgd.audit import Audit, Finding, Step, Subject, audit, distinguishing, noise, steps
from sqsgd.audit.audit_page import write_audit
from sqsgd.audit.checklist import gathered
from sqsgd.audit.findings import by_test, judged

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
    found = audit(subject(name), inversion=False)
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


# ---------------------------------------------------------------- pictures and the page


@pytest.mark.parametrize("reason", ["sqsgd[train]", "is too long"])
def test_inversion_is_skipped_with_a_reason(monkeypatch, reason):
    """Without torch, or where the model's gradient is longer than the scheme supports."""

    def short(*, dim, epsilon, bytes):
        if dim > 1000:
            raise ValueError(f"dim = {dim} is too long")
        return make_scheme("sqsgd", dim=dim, epsilon=epsilon, bytes=bytes)

    if reason == "sqsgd[train]":
        monkeypatch.setitem(sys.modules, "sqsgd.audit.inversion", None)
    else:
        pytest.importorskip("torch")
    case = Subject(name="short", make=short, dim=1000, epsilon=100.0, bytes=64)
    (finding,) = steps(case)[-1].findings(case)
    assert finding.outcome == "not applicable"
    assert reason in finding.sentence


def test_pictures_from_a_gradient_and_from_a_report(tmp_path, monkeypatch):
    """A few steps suffice to distinguish the raw gradient from a report."""
    torch = pytest.importorskip("torch")
    from sqsgd.audit import inversion

    monkeypatch.setattr(inversion, "BATCHES", (1,))
    case = subject("sqsgd", dim=119850, epsilon=400.0, bytes=256)
    threads = torch.get_num_threads()
    (finding,) = inversion.inverted_gradients(case, steps=25)
    assert torch.get_num_threads() == threads
    assert finding.outcome == "passed"
    assert finding.measured < 0.8 < finding.limit
    assert 0.3 < finding.details["cosine"] < 0.6
    written = write_audit(gathered(case, [finding]), tmp_path)
    assert [path.name for path in written] == ["audit.html", "audit.json", "pictures-1.png"]
    page = (tmp_path / "audit.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert not re.search(r"https?://|@import|url\(", page)
    picture = torch.rand((1, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    assert inversion.correlation(picture, picture) == pytest.approx(1.0)
    assert inversion.correlation(1 - picture, picture) == pytest.approx(-1.0)
