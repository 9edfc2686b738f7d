"""Evaluations at a node: one number leaves, of exactly the epsilon that was paid, if the owner allows it."""

import math
import sys
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from asking import DIM, LOG, arrays, ask, lines, request
from proofs.enumeration import Coin, largest_ratio, law

from sqsgd import Ledger
from sqsgd.codec import MalformedReport
from sqsgd.core import Scheme
from sqsgd.mechanisms import scalardp
from sqsgd.mechanisms.one_number import OneNumber
from sqsgd.node import answer, evaluation, reasons
from sqsgd.node.answer import Node
from sqsgd.node.downlink import Download
from sqsgd.node.evaluation import evaluation_scheme
from sqsgd.node.node_state import FolderState
from sqsgd.node.policy import Policy
from sqsgd.node.request import Request

ALLOWED = {"evaluate_epsilon": 8.0}


def scheme_of(epsilon=1.0, metric="accuracy"):
    return evaluation_scheme(metric, OneNumber(epsilon=epsilon))


def asked(metric="accuracy", epsilon=1.0, **changes):
    fields = {"scheme": "evaluation", "options": {"metric": metric}, "epsilon": epsilon, "bits": 136}
    fields |= {"bound": 1.0, "fingerprint": scheme_of(epsilon, metric).fingerprint}
    return request(**{**fields, **changes})


def evaluate(folder, wanted, measure=lambda *_: 0.75, model=None, **config):
    """Node 5's number for a request, or the reason why there is none."""
    owner = {"state-dir": str(folder), "max-epsilon": 1e6}
    owner |= {key.replace("_", "-"): value for key, value in config.items()}
    try:
        policy = Policy.of(owner, simulation=False)
        node = Node(policy=policy, state=FolderState(policy.state_dir, policy), client=5, log=LOG)
        parsed = Request.from_fields(wanted.to_fields())
        return node.evaluate(parsed, Download(arrays=lambda: model or arrays()), measure)
    except Exception as error:
        return reasons.explain(error, wanted.to_fields(), owner, LOG)


def task_of(wanted):
    return replace(wanted.task, dim=1)


def fails(error):
    def measure(structure, weights):
        raise error("the patient's name is Eve")

    return measure


FAILURES = {
    "an exception": fails(RuntimeError), "an exit": fails(SystemExit), "no memory": fails(MemoryError),
    "not a number": lambda *_: math.nan, "text": lambda *_: "0.9", "a truth": lambda *_: True,
    "nothing": lambda *_: None, "a list": lambda *_: [0.5],
}  # fmt: skip


# ---------------------------------------------------------------- the exact law of all that leaves


@pytest.fixture
def enumerated(monkeypatch, tmp_path):
    """The exact law of a node's whole payload for a measured value, with e^ε a whole number."""
    monkeypatch.setattr(scalardp, "check_rng", lambda rng: rng)
    monkeypatch.setattr(sys.modules[Scheme.__module__], "check_rng", lambda rng: rng)

    def found(gain, measure, metric="accuracy", maximum=1.0):
        epsilon = math.log(gain)
        levels = OneNumber(epsilon=epsilon).scalar.levels

        def coin(log_odds):
            assert abs(float(log_odds()) - math.log(Fraction(gain, levels))) < 1e-12
            return Coin(Fraction(gain, gain + levels))

        monkeypatch.setattr(scalardp.exact, "bernoulli", coin)
        wanted = asked(metric, epsilon, bound=maximum)

        def draw(choices):
            monkeypatch.setattr(answer, "secure_rng", lambda: choices)
            with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
                payload = evaluate(Path(folder), wanted, measure, **ALLOWED)
                assert Ledger(Path(folder) / "ledger").spent == Fraction(epsilon)
            assert isinstance(payload, bytes)
            return payload

        return law(draw)

    return found


VALUES = (0.0, 1.0, 0.3, 0.5, -4.0, 7, math.inf)


@pytest.mark.parametrize(("gain", "values"), [(2, VALUES), (20, VALUES)])
def test_the_whole_path_has_the_paid_epsilon_exactly(enumerated, gain, values):
    """Every payload is reached from every value, and the largest ratio of two probabilities is e^ε."""
    laws = [enumerated(gain, lambda *_, value=value: value) for value in values]
    laws.append(enumerated(gain, FAILURES["an exception"]))
    levels = OneNumber(epsilon=math.log(gain)).scalar.levels
    for each in laws:
        assert sum(each.values()) == 1
        assert len(each) == levels + 1
    assert largest_ratio(laws) == gain


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_app_has_the_law_of_the_worst_value(enumerated, failure):
    """Not only the same form: the same probabilities of the same bytes, so that nobody can tell."""
    assert enumerated(3, FAILURES[failure]) == enumerated(3, lambda *_: 0.0)
    worst = enumerated(3, lambda *_: 5.0, "loss", 5.0)
    assert enumerated(3, FAILURES[failure], "loss", 5.0) == worst != enumerated(3, lambda *_: 0, "loss", 5.0)


def test_the_enumeration_catches_a_symbol_that_is_drawn_twice(enumerated, monkeypatch):
    """The larger of two symbols is sent: every payload is still reached, with another ratio."""
    honest = OneNumber.randomize

    def broken(self, x, bound, rng):
        return (np.maximum(honest(self, x, bound, rng)[0], honest(self, x, bound, rng)[0]),)

    monkeypatch.setattr(OneNumber, "randomize", broken)
    with pytest.raises(AssertionError, match=r"Fraction\(4, 1\) == 2"):
        test_the_whole_path_has_the_paid_epsilon_exactly(enumerated, 2, values=(1.0,))


def test_the_enumeration_catches_a_failure_that_is_told(enumerated, monkeypatch):
    monkeypatch.setattr(evaluation, "worst", lambda metric, maximum: maximum)
    monkeypatch.setattr(answer, "worst", lambda metric, maximum: maximum)
    with pytest.raises(AssertionError):
        test_a_failing_app_has_the_law_of_the_worst_value(enumerated, "nothing")


# ---------------------------------------------------------------- what is allowed


def test_what_the_owner_did_not_allow_is_refused(tmp_path):
    """Off by default; above the owner's limits; nothing is measured and nothing is paid."""
    calls = []
    for config, wanted, reason, words in [
        ({}, asked(), reasons.NOT_ALLOWED, "has no evaluate-epsilon"),
        (ALLOWED, asked(epsilon=8.5), reasons.NOT_ALLOWED, "above this node's evaluate-epsilon = 8.0"),
        (ALLOWED | {"max_epsilon_per_report": 0.5}, asked(), reasons.NOT_ALLOWED, "max-epsilon-per-report"),
        (ALLOWED | {"max_epsilon": 0.5}, asked(), reasons.NOT_ALLOWED, "max-epsilon-per-report = 0.5"),
        (ALLOWED, asked(fingerprint=7), reasons.NOT_ALLOWED, "fingerprint"),
        (ALLOWED, asked(client=6), reasons.NOT_ALLOWED, "is another node"),
        (ALLOWED, asked(by_slot=True), reasons.NOT_ALLOWED, "by slot"),
        (ALLOWED, replace(asked(), epsilon=1e-7), reasons.NOT_ALLOWED, "cannot be made private"),
        (ALLOWED, request(), reasons.NOT_ALLOWED, "above this node's evaluate-epsilon"),
        (ALLOWED, request(epsilon=1.0, fingerprint=0), reasons.MALFORMED, "the scheme 'evaluation'"),
        (ALLOWED, asked(options={}), reasons.MALFORMED, "the option metric"),
        (ALLOWED, asked(options={"metric": "accuracy", "levels": 2}), reasons.MALFORMED, "the option metric"),
        (ALLOWED, asked(options={"metric": 7}), reasons.MALFORMED, "1 to 100 printable"),
        (ALLOWED, asked(options={"metric": "x" * 101}), reasons.MALFORMED, "1 to 100 printable"),
        (ALLOWED, asked(bound=1e13), reasons.MALFORMED, "a bound of at most"),
        (ALLOWED, asked(clip=1.0), reasons.MALFORMED, "no clip"),
        (ALLOWED, asked(dim=DIM + 1), reasons.MALFORMED, "the model has 300 weights"),
        (ALLOWED, asked(base=0), reasons.MALFORMED, "both a model and an update"),
        (ALLOWED, asked(weights=np.ones(DIM, np.float32)), reasons.MALFORMED, "digest"),
    ]:  # fmt: skip
        assert evaluate(tmp_path, wanted, lambda *_: calls.append(1), **config) == reason, words
        assert words in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert calls == []
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("value", [0, -1.0, "1", math.nan])
def test_a_limit_that_is_no_number_allows_nothing(tmp_path, value):
    assert evaluate(tmp_path, asked(), evaluate_epsilon=value) == reasons.NOT_ALLOWED


def test_a_simulation_answers_unless_it_is_told_otherwise():
    """It protects nobody, and has no owner who could allow it."""
    assert Policy.of({}, simulation=True).evaluate_epsilon == 1e300
    assert Policy.of({"evaluate-epsilon": 0.5}, simulation=True).evaluate_epsilon == 0.5
    assert Policy.of({"state-dir": "/a", "max-epsilon": 9.0}, simulation=False).evaluate_epsilon is None


def test_an_evaluation_is_no_report_of_a_training(tmp_path):
    """A training request that names it is refused, whatever the owner allows here."""
    assert ask(tmp_path, asked(), **ALLOWED) == reasons.NOT_ALLOWED
    assert not (tmp_path / "ledger").exists()


# ---------------------------------------------------------------- paid, once


def test_it_is_paid_before_data_are_touched(tmp_path):
    seen = []

    def measure(structure, weights):
        ledger = Ledger(tmp_path / "ledger")
        seen.append([(each.task, each.round, each.epsilon, each.scheme) for each in ledger.entries])
        return 0.5

    payload = evaluate(tmp_path, asked(round=3), measure, **ALLOWED)
    name = f"evaluation of accuracy {scheme_of().fingerprint:08x}"
    assert seen == [[("test evaluate", 3, 1.0, name)]]
    assert len(payload) == 17
    (noted,) = lines(tmp_path / "answers.jsonl")
    assert (noted["task"], noted["epsilon"], noted["asked_epsilon"]) == ("test evaluate", 1.0, 1.0)


def test_a_round_is_evaluated_once(tmp_path):
    """The same request gets the same bytes and costs nothing; with anything changed it is refused."""
    calls = []

    def measure(*_):
        calls.append(1)
        return 0.5

    first = evaluate(tmp_path, asked(round=1), measure, **ALLOWED)
    assert {evaluate(tmp_path, asked(round=1), measure, **ALLOWED) for _ in range(20)} == {first}
    other = np.ones(DIM, np.float32)
    for wanted, model in [
        (asked(round=1, epsilon=0.5), None),
        (asked("loss", round=1), None),
        (asked(round=1, bound=2.0), None),
        (asked(round=1, weights=other), arrays(1.0)),
        (asked(round=0), None),
    ]:
        assert evaluate(tmp_path, wanted, measure, model, **ALLOWED) == reasons.ANSWERED
    for changed in (asked("loss", round=2), asked(round=2, seed=10), asked(round=2, epsilon=1.5)):
        assert evaluate(tmp_path, changed, measure, **ALLOWED) == reasons.NOT_ALLOWED
    assert len(calls) == 1
    assert isinstance(evaluate(tmp_path, asked(round=2), measure, **ALLOWED), bytes)
    assert Ledger(tmp_path / "ledger").spent == 2


def test_without_the_kept_answer_the_ledger_still_refuses(tmp_path):
    evaluate(tmp_path, asked(), **ALLOWED)
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()
    assert evaluate(tmp_path, asked(), **ALLOWED) == reasons.ANSWERED
    assert Ledger(tmp_path / "ledger").spent == 1


def test_one_cap_covers_reports_and_evaluations(tmp_path):
    config = {**ALLOWED, "max_epsilon": 202.5}
    assert isinstance(ask(tmp_path, request(), **config), bytes)
    for number in (0, 1):
        assert isinstance(evaluate(tmp_path, asked(round=number), **config), bytes)
    assert evaluate(tmp_path, asked(round=2), fails(AssertionError), **config) == reasons.SPENT
    assert ask(tmp_path, request(round=1), **config) == reasons.SPENT
    assert Ledger(tmp_path / "ledger").spent == 202
    assert [entry.task for entry in Ledger(tmp_path / "ledger").entries] == [
        "test", "test evaluate", "test evaluate",
    ]  # fmt: skip


def test_a_training_that_bears_the_name_of_an_evaluation_is_another(tmp_path):
    assert isinstance(evaluate(tmp_path, asked(), **ALLOWED), bytes)
    assert ask(tmp_path, request(name="test evaluate", round=1), **ALLOWED) == reasons.NOT_ALLOWED
    assert isinstance(ask(tmp_path / "b", request(name="test evaluate"), **ALLOWED), bytes)
    assert evaluate(tmp_path / "b", asked(round=1), **ALLOWED) == reasons.NOT_ALLOWED


def test_a_number_is_valid_for_its_request_alone(tmp_path):
    """Not for another round, node, metric, epsilon or range; and no bit of it can change."""
    payload = evaluate(tmp_path, asked(round=4), **ALLOWED)
    assert scheme_of().open(payload, task_of(asked(round=4)))[0].tolist() in ([0], [1])
    for scheme, wanted in [
        (scheme_of(), asked(round=5)),
        (scheme_of(), asked(round=4, client=6)),
        (scheme_of(), asked(round=4, bound=2.0)),
        (scheme_of(metric="loss"), asked(round=4)),
        (scheme_of(epsilon=1.5), asked(round=4)),
    ]:
        with pytest.raises(MalformedReport):
            scheme.open(payload, task_of(wanted))
    for place in range(8 * len(payload)):
        changed = bytearray(payload)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(MalformedReport):
            scheme_of().open(bytes(changed), task_of(asked(round=4)))


@pytest.mark.parametrize("failure", FAILURES)
def test_failures_are_counted_for_the_owner_alone(tmp_path, failure):
    payload = evaluate(tmp_path, asked(), FAILURES[failure], **ALLOWED)
    assert len(payload) == 17
    (noted,) = lines(tmp_path / "answers.jsonl")
    raised = failure in ("an exception", "an exit", "no memory")
    assert noted["zero"] == (answer.FAILED if raised else answer.NOT_MEASURED)
    assert not (tmp_path / "refusals.jsonl").exists()
    assert not any(b"Eve" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
