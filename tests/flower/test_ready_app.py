"""The ready app: whose data a report is of, what a node allows, and a few rounds of it in one process."""

import subprocess
import sys

import numpy as np
import pytest
from federation import Nodes, lines, message, payload_of, ready_settings, request
from flwr.app import Array, ArrayRecord, Context, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")

from sqsgd.federation.flower.ready_app import check, client_app, problem_of, server_app
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import FolderState
from sqsgd.federation.node.policy import Refused


def test_the_apps_folder_is_found_without_loading_flower():
    check = "import sys, sqsgd.federation.flower as f; print(f.app_folder().exists(), 'flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("downlink", ["full", "delta"])
def test_it_trains(tmp_path, downlink):
    config = ready_settings() | {"num-server-rounds": 12, "out": str(tmp_path / "run"), "downlink": downlink}
    config |= {"evaluate-every": 12, "min-nodes": 3, "lr": 0.25}
    owner = {"num-partitions": 3, "max-epsilon": 1e6}
    contexts = [
        Context(
            run_id=1,
            node_id=50 + i,
            node_config={**owner, "partition-id": i, "state-dir": str(tmp_path / str(i))},
            state=RecordDict(),
            run_config=config,
        )
        for i in range(3)
    ]
    server = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server_app(Nodes(client_app, contexts), server)
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["clients"] for line in written] == [3] * 12
    assert written[-1]["test_loss"] < 2.3  # that of a guess is ln 10
    assert (tmp_path / "run" / "model.safetensors").exists()
    if downlink == "delta":
        assert written[1]["bytes_down"] < 2000 < 4 * 119850 < written[0]["bytes_down"]


def test_a_node_without_a_partition_refuses_and_pays_nothing(tmp_path):
    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path)}
    for more, word in [({}, "partition-id"), ({"partition-id": 3, "num-partitions": 3}, "below")]:
        context = Context(
            run_id=1, node_id=5, node_config=owner | more, state=RecordDict(), run_config=ready_settings()
        )
        assert client_app(message(request()), context).error.reason == policy.NOT_ALLOWED
        assert word in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()


def context(config, folder, **node):
    owner = {"max-epsilon": 1e6, "state-dir": str(folder), **node}
    return Context(run_id=1, node_id=5, node_config=owner, state=RecordDict(), run_config=config)


def test_no_server_gets_a_report_of_one_example(tmp_path):
    """The run's configuration is the server's; the least batch is the owner's, and is named in the log."""
    config = ready_settings() | {"model": "linear"}
    weights = problem_of(config, 3).initial()
    sent = message(request(weights, dim=weights.size, bytes=256), ArrayRecord({"weights": Array(weights)}))
    node = {"partition-id": 1, "num-partitions": 3, "min-batch": 32}
    for batch in (1, "1", 1.9, 31, 0, -5):
        reply = client_app(sent, context(config | {"batch": batch}, tmp_path, **node))
        assert reply.error.reason == policy.NOT_ALLOWED
        assert "is below this node's min-batch = 32" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    small = context(config, tmp_path, **{**node, "num-partitions": 1000})
    assert client_app(sent, small).error.reason == policy.NOT_ALLOWED
    assert "a partition has 4 examples" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()
    payload_of(client_app(sent, context(config, tmp_path, **node)))
    (noted,) = lines(tmp_path / "answers.jsonl")
    assert (noted["asked_epsilon"], noted["asked_bytes"], noted["asked_batch"]) == (200.0, 256.0, 32)


def test_a_configuration_that_does_not_fit_costs_nothing(tmp_path):
    """Another model than the one that was sent, or a missing key: found on a dry run of zeros."""
    config, node = ready_settings() | {"model": "linear"}, {"partition-id": 1, "num-partitions": 3}
    weights = problem_of(config, 3).initial()
    sent = message(request(weights, dim=weights.size, bytes=256), ArrayRecord({"weights": Array(weights)}))
    lacking = {key: value for key, value in config.items() if key != "seed"}
    for wrong, word in [(config | {"model": "mlp"}, "array 'weights' is"), (lacking, "lacks seed")]:
        assert client_app(sent, context(wrong, tmp_path, **node)).error.reason == policy.MISFIT
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
    sent = message(request(weights, dim=weights.size, bytes=256), ArrayRecord({"weights": Array(weights)}))
    for name, word in [("own:few", "a partition has 5 examples"), ("own:lost", "no such disk")]:
        node = {"partition-id": 1, "num-partitions": 3, "min-batch": 8, "dataset": name}
        payload_of(client_app(sent, context(config | {"dataset": name}, tmp_path / name, **node)))
        (noted,) = lines(tmp_path / name / "answers.jsonl")
        assert (noted["epsilon"], noted["zero"]) == (200.0, "the app failed")
        assert word in caplog.text


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
    asked = request(weights, dim=weights.size, bytes=256, round=4)
    node = {"partition-id": 1, "num-partitions": 3}
    reply = client_app(
        message(asked, ArrayRecord({"weights": Array(weights)})), context(config, tmp_path, **node)
    )
    payload_of(reply)
    residual = FolderState(tmp_path).read("test").residual
    sent = residual == 0
    for part in range(3):
        _, gradient = next(problem.gradients(weights, 4, [part]))
        assert np.array_equal(residual[~sent], gradient[~sent]) == (part == 1)


@pytest.mark.parametrize("key", ["dataset", "model"])
def test_no_code_is_called_that_the_owner_did_not_name(tmp_path, monkeypatch, key):
    """The run's configuration is the server's: what it names is imported only where the node names it too."""
    (tmp_path / f"planted_{key}.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nfactory = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = {key: f"planted_{key}:factory"}
    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path / "state"), "partition-id": 0, "num-partitions": 3}

    def ask(**more):
        context = Context(
            run_id=1,
            node_id=5,
            node_config=owner | more,
            state=RecordDict(),
            run_config=ready_settings() | named,
        )
        sent = message(request(weights, dim=weights.size), ArrayRecord({"weights": Array(weights)}))
        return client_app(sent, context)

    weights = np.zeros(300, np.float32)
    for other in ({}, {key: "planted:other"}):
        assert ask(**other).error.reason == policy.NOT_ALLOWED
        assert "does not name it" in lines(tmp_path / "state" / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "state" / "ledger").exists()
    ask(**named)
    assert (tmp_path / "ran").exists()


def test_a_node_without_the_data_refuses_and_pays_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_DATA", str(tmp_path / "nothing"))
    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path), "partition-id": 0, "num-partitions": 3}
    config = ready_settings() | {"dataset": "fashion-mnist"}
    context = Context(run_id=1, node_id=5, node_config=owner, state=RecordDict(), run_config=config)
    assert client_app(message(request()), context).error.reason == policy.NOT_ALLOWED
    assert not (tmp_path / "ledger").exists()


def test_a_node_and_the_server_have_the_same_model_whatever_part_they_hold():
    config = ready_settings() | {"model": "mlp"}
    server, node = problem_of(config, 1), problem_of(config, 3)
    assert server.initial().tobytes() == node.initial().tobytes()
    assert sum(len(part) for part in node.parts) == len(server.parts[0]) == 4000
    other = problem_of(config | {"seed": 5}, 3)
    assert other.initial().tobytes() != node.initial().tobytes()
