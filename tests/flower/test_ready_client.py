"""The ready ClientApp: which part of the data is a node's own, and what its report is of."""

import numpy as np
import pytest
from federation import lines, message, payload_of, ready_settings, request
from flwr.app import Array, ArrayRecord, Context, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")

from sqsgd.flower.ready_client import app, check
from sqsgd.flower.ready_problem import problem_of
from sqsgd.node import reasons
from sqsgd.node.node_state import FolderState
from sqsgd.node.policy import Refused


def test_a_node_without_a_partition_refuses_and_pays_nothing(tmp_path):
    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path)}
    for more, word in [({}, "partition-id"), ({"partition-id": 3, "num-partitions": 3}, "below")]:
        context = Context(
            run_id=1, node_id=5, node_config=owner | more, state=RecordDict(), run_config=ready_settings()
        )
        assert app(message(request()), context).error.reason == reasons.NOT_ALLOWED
        assert word in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()


def context(config, folder, **node):
    owner = {"max-epsilon": 1e6, "state-dir": str(folder), **node}
    return Context(run_id=1, node_id=5, node_config=owner, state=RecordDict(), run_config=config)


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "1"])
def test_a_part_is_a_whole_number(tmp_path, value):
    given = {} if value is None else {"partition-id": value}
    with pytest.raises(Refused, match=r"partition-id = .* must be a whole number"):
        check(context(ready_settings(), tmp_path, **given, **{"num-partitions": 3}))


def test_the_report_is_of_the_nodes_own_part(tmp_path):
    """Its residual with the report's block is the gradient: that of partition 1, and of no other."""
    config = ready_settings() | {"model": "linear"}
    problem = problem_of(config, 3)
    weights = problem.initial()
    asked = request(weights, dim=weights.size, bits=2048, round=4)
    node = {"partition-id": 1, "num-partitions": 3}
    reply = app(message(asked, ArrayRecord({"weights": Array(weights)})), context(config, tmp_path, **node))
    payload_of(reply)
    residual = FolderState(tmp_path).read("test").residual
    sent = residual == 0
    for part in range(3):
        _, gradient = next(problem.gradients(weights, 4, [part]))
        assert np.array_equal(residual[~sent], gradient[~sent]) == (part == 1)
