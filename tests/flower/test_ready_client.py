"""The ready ClientApp: which part of the data is a node's own, and what its report is of."""

import dataclasses

import numpy as np
import pytest
from federation import lines, message, payload_of, ready_settings, request
from flwr.app import Array, ArrayRecord, Context, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")

from sqsgd.flower.ready_client import app, check
from sqsgd.flower.ready_problem import held_out_part, problem_of
from sqsgd.mechanisms.one_number import OneNumber
from sqsgd.node import reasons
from sqsgd.node.evaluation import evaluation_scheme
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


def test_no_server_gets_a_report_of_one_example(tmp_path):
    """The run's configuration is the server's; the least batch is the owner's, and is named in the log."""
    config = ready_settings() | {"model": "linear"}
    weights = problem_of(config, 3).initial()
    sent = message(request(weights, dim=weights.size, bits=2048), ArrayRecord({"weights": Array(weights)}))
    node = {"partition-id": 1, "num-partitions": 3, "min-batch": 32}
    for batch in (1, "1", 1.9, 31, 0, -5):
        reply = app(sent, context(config | {"batch": batch}, tmp_path, **node))
        assert reply.error.reason == reasons.NOT_ALLOWED
        assert "is below this node's min-batch = 32" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    small = context(config, tmp_path, **{**node, "num-partitions": 1000})
    assert app(sent, small).error.reason == reasons.NOT_ALLOWED
    assert "a partition has 4 examples" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()
    payload_of(app(sent, context(config, tmp_path, **node)))
    (noted,) = lines(tmp_path / "answers.jsonl")
    assert (noted["asked_epsilon"], noted["asked_bytes"], noted["asked_batch"]) == (200.0, 256.0, 32)


def test_a_configuration_that_does_not_fit_costs_nothing(tmp_path):
    """Another model than the one that was sent, or a missing key: found on a dry run of zeros."""
    config, node = ready_settings() | {"model": "linear"}, {"partition-id": 1, "num-partitions": 3}
    weights = problem_of(config, 3).initial()
    sent = message(request(weights, dim=weights.size, bits=2048), ArrayRecord({"weights": Array(weights)}))
    lacking = {key: value for key, value in config.items() if key != "seed"}
    for wrong, word in [(config | {"model": "mlp"}, "array 'weights' is"), (lacking, "lacks seed")]:
        assert app(sent, context(wrong, tmp_path, **node)).error.reason == reasons.MISFIT
        assert word in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()


def test_nothing_about_own_data_is_told_unpaid(tmp_path, monkeypatch, caplog):
    """Too few examples, or none that can be loaded: a paid report of zero, which the owner's log explains."""
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def few():\n"
        "    return np.zeros((20, 1, 28, 28), np.float32), np.arange(20) % 10\n"
        "def lost():\n"
        "    raise OSError('no such disk')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = ready_settings() | {"model": "linear"}
    weights = problem_of(config, 3).initial()
    sent = message(request(weights, dim=weights.size, bits=2048), ArrayRecord({"weights": Array(weights)}))
    for name, word in [("own:few", "a partition has 5 examples"), ("own:lost", "no such disk")]:
        node = {"partition-id": 1, "num-partitions": 3, "min-batch": 8, "dataset": name}
        payload_of(app(sent, context(config | {"dataset": name}, tmp_path / name, **node)))
        (noted,) = lines(tmp_path / name / "answers.jsonl")
        assert (noted["epsilon"], noted["zero"]) == (200.0, "the app failed")
        assert word in caplog.text


def test_the_number_is_of_the_nodes_own_held_out_part(tmp_path):
    """Its accuracy, at an epsilon that leaves nearly no noise; the parts are all of the held-out data."""
    config = ready_settings() | {"model": "linear"}
    problem = problem_of(config, 3)
    parts = [held_out_part(problem, part) for part in range(3)]
    assert sum(len(part.dataset.test_labels) for part in parts) == len(problem.dataset.test_labels)
    for seed in range(100):  # a model that does better or worse on this part than on the others
        weights = np.random.default_rng(seed).normal(size=problem.dim).astype(np.float32)
        accuracies = [part.evaluate(weights)[0] for part in parts]
        if min(abs(accuracies[1] - accuracies[part]) for part in (0, 2)) > 0.01:
            break
    mechanism = OneNumber(epsilon=100.0)
    scheme = evaluation_scheme("accuracy", mechanism)
    fields = {"scheme": "evaluation", "options": {"metric": "accuracy"}, "epsilon": 100.0, "bits": 136}
    asked = request(weights, dim=weights.size, bound=1.0, fingerprint=scheme.fingerprint, **fields)
    node = {"partition-id": 1, "num-partitions": 3, "evaluate-epsilon": 100.0}
    sent = message(asked, ArrayRecord({"weights": Array(weights)}), kind="evaluate")
    reply = app(sent, context(config, tmp_path, **node))
    found = scheme.decode(payload_of(reply), dataclasses.replace(asked.task, dim=1))[0]
    assert [abs(found - each) <= 1 / 255 for each in accuracies] == [False, True, False]
    assert "zero" not in lines(tmp_path / "answers.jsonl")[0]


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
