"""A node from end to end with plain Python objects: no transport, no flwr."""

import subprocess
import sys

import numpy as np
import pytest
from asking import DIM, ask, lines, request, target

from sqsgd import Ledger, make_scheme
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import FolderState

SCHEME = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32, code="signs")


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
