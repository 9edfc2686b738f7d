"""A node from end to end with plain Python objects: no transport, no flwr."""

import subprocess
import sys

import numpy as np
import pytest
from asking import DIM, arrays, ask, gradient, lines, request, target

from sqsgd import Ledger, make_scheme
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import FolderState

SCHEME = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32, code="signs")


def counted(calls):
    def compute(structure, weights):
        calls.append(weights.copy())
        return gradient(structure, weights)

    return compute


def test_a_training_without_a_transport(tmp_path):
    """Two rounds, the second with another model; a repeat; refused requests; a spent budget."""
    calls = []
    config = {"compute": counted(calls), "max_epsilon": 500.0}
    first = ask(tmp_path, request(), **config)
    assert len(first) == SCHEME.bits // 8
    block = SCHEME.transforms[0].coordinates(request().task, DIM)
    decoded, wanted = SCHEME.decode(first, request().task)[block], -target(5)[block]
    assert decoded @ wanted / np.linalg.norm(decoded) / np.linalg.norm(wanted) > 0.5

    again = ask(tmp_path, request(), **config)
    assert again == first
    assert len(calls) == 1

    after = np.full(DIM, 0.1, np.float32)
    second = ask(tmp_path, request(after, round=1), arrays(0.1), **config)
    assert isinstance(second, bytes)
    assert second != first
    np.testing.assert_array_equal(calls[1], after)
    kept = FolderState(tmp_path).read("test")
    assert (kept.request.task.round, kept.payload) == (1, second)

    assert ask(tmp_path, request(bound=21.0), **config) == policy.ANSWERED
    assert ask(tmp_path, request(round=2, epsilon=201.0), **config) == policy.NOT_ALLOWED
    assert ask(tmp_path, request(round=2, client=6), **config) == policy.NOT_ALLOWED
    assert ask(tmp_path, request(round=2), arrays(0.5), **config) == policy.MALFORMED  # another model
    assert ask(tmp_path, request(round=2), **config) == policy.SPENT
    assert len(calls) == 2
    assert Ledger(tmp_path / "ledger").spent == 400
    answers, refusals = lines(tmp_path / "answers.jsonl"), lines(tmp_path / "refusals.jsonl")
    assert [(line["round"], line["epsilon"]) for line in answers] == [(0, 200.0), (0, 0.0), (1, 200.0)]
    assert all(line["payload_bytes"] == len(first) for line in answers)
    assert len(refusals) == 5
    assert "epsilon cannot rise" in refusals[1]["reason"]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, None])
def test_a_computation_that_fails_is_reported_as_zero(tmp_path, wrong):
    def compute(structure, weights):
        if wrong is None:
            raise RuntimeError("the patient's name is Eve")
        return np.full(DIM, wrong, np.float32)

    payload = ask(tmp_path, request(), compute=compute)
    assert len(payload) == SCHEME.bits // 8
    assert np.linalg.norm(SCHEME.decode(payload, request().task)) < np.linalg.norm(target(5))
    assert Ledger(tmp_path / "ledger").spent == 200


def test_a_residual_that_cannot_be_encoded_is_dropped(tmp_path):
    """The server chooses alpha; if the second attempt failed too, it would learn of a large gradient."""
    config = {"compute": lambda structure, weights: np.full(DIM, 1e9, np.float32)}
    for round in range(3):
        assert isinstance(ask(tmp_path, request(round=round, alpha=1e6), **config), bytes)
        residual = FolderState(tmp_path).read("test").residual
        assert (residual.max() > 1e14) == (round != 1)
    zeros = [line.get("zero") for line in lines(tmp_path / "answers.jsonl")]
    assert [bool(zero) for zero in zeros] == [False, True, False]


@pytest.mark.parametrize("by_slot", [False, True])
def test_the_noise_is_a_nodes_own(tmp_path, by_slot):
    """Nodes with the same data draw different noise for one request.

    Noise from the public task, which names a slot or a node, would be known to the server.
    """
    options = {"scheme": "sqsgd-stateless", "options": {}} if by_slot else {}
    asked = request(epsilon=2.0 if by_slot else 20.0, by_slot=by_slot, **options)
    reports = [ask(tmp_path / str(number), asked) for number in range(5)]
    assert all(isinstance(report, bytes) for report in reports)
    assert len(set(reports)) > 1  # two of few codes may be equal, all five are not


def test_a_node_needs_no_flower():
    check = """
import importlib, pkgutil, sys, sqsgd.federation.node
for module in pkgutil.walk_packages(sqsgd.federation.node.__path__, "sqsgd.federation.node."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("flwr", "torch", "ray")))
print("sqsgd.federation.node.answer" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True"]


def test_a_node_fills_any_slot_but_answers_for_no_other_node(tmp_path):
    asked = {"scheme": "privunit-index", "epsilon": 8.0, "client": 3}
    assert isinstance(ask(tmp_path / "a", request(**asked)), str)
    report = ask(tmp_path / "b", request(**asked, by_slot=True))
    assert isinstance(report, bytes)
    assert len(report) == 5 + 2
    assert ask(tmp_path / "b", request(**asked, by_slot=True)) == report  # the same request, the same bytes
    for change in ({"client": 4}, {"round": 1}, {"round": 1, "client": 4}):  # who is asked once answers once
        again = ask(tmp_path / "b", request(**{**asked, **change}, by_slot=True))
        assert again == policy.ANSWERED
    assert Ledger(tmp_path / "b" / "ledger").spent == 8
