"""The ready app: whose data a report is of, what a node allows, and a few rounds of it in one process."""

import re
import subprocess
import sys

import numpy as np
import pytest
from federation import Nodes, lines, message, payload_of, ready_settings, request
from flwr.app import Array, ArrayRecord, Context, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")

from sqsgd.federation.flower.ready_app import client_app, problem_of, server_app
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import FolderState


def test_the_apps_folder_is_found_without_loading_flower():
    check = "import sys, sqsgd.federation.flower as f; print(f.app_folder().exists(), 'flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def context(config, folder, node=5, **own):
    owner = {"max-epsilon": 1e6, "state-dir": str(folder)} | {key.replace("_", "-"): own[key] for key in own}
    return Context(run_id=1, node_id=node, node_config=owner, state=RecordDict(), run_config=config)


LINEAR = ready_settings() | {"model": "linear"}
PART = {"partition_id": 1, "num_partitions": 3}


@pytest.fixture(scope="module")
def weights():
    return problem_of(LINEAR, 3).initial()


def asked(weights, **changes):
    """A request with a model of these weights."""
    made = request(weights, **{"dim": weights.size, "bytes": 256, **changes})
    return message(made, ArrayRecord({"weights": Array(weights)}))


def test_it_trains(tmp_path):
    config = ready_settings() | {"num-server-rounds": 12, "out": str(tmp_path / "run")}
    config |= {"evaluate-every": 12, "min-nodes": 3, "lr": 0.25}
    nodes = [context(config, tmp_path / str(i), 50 + i, partition_id=i, num_partitions=3) for i in range(3)]
    server_app(Nodes(client_app, nodes), context(config, tmp_path, 1))
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["clients"] for line in written] == [3] * 12
    assert written[-1]["test_loss"] < 2.3  # that of a guess is ln 10
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "node", "word"),
    [
        ({}, {}, "partition-id = None .* must be a whole number"),
        ({}, {"partition_id": True, "num_partitions": 3}, "partition-id = True .* must be a whole number"),
        ({}, {"partition_id": -1, "num_partitions": 3}, "partition-id = -1 .* must be a whole number"),
        ({}, {"partition_id": 3, "num_partitions": 3}, "below"),
        ({"dataset": "fashion-mnist"}, PART, "the dataset cannot be loaded"),
        ({"seed": None}, PART, "lacks seed"),
    ],
)
def test_a_node_that_is_not_set_up_refuses_and_pays_nothing(tmp_path, monkeypatch, changes, node, word):
    if "dataset" in changes:
        monkeypatch.setenv("SQSGD_DATA", str(tmp_path / "nothing"))
    config = {key: value for key, value in (ready_settings() | changes).items() if value is not None}
    reply = client_app(message(request()), context(config, tmp_path, **node))
    assert reply.error.reason == policy.NOT_ALLOWED
    assert re.search(word, lines(tmp_path / "refusals.jsonl")[-1]["reason"])
    assert not (tmp_path / "ledger").exists()


def test_no_server_gets_a_report_of_one_example(tmp_path, weights):
    """The run's configuration is the server's; the least batch is the owner's, and is named in the log."""
    sent, node = asked(weights), {**PART, "min_batch": 32}
    for batch in (1, "1", 1.9, 31, 0, -5):
        reply = client_app(sent, context(LINEAR | {"batch": batch}, tmp_path, **node))
        assert reply.error.reason == policy.NOT_ALLOWED
        assert "is below this node's min-batch = 32" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    small = context(LINEAR, tmp_path, **{**node, "num_partitions": 1000})
    assert client_app(sent, small).error.reason == policy.NOT_ALLOWED
    assert "a partition has 4 examples" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()
    payload_of(client_app(sent, context(LINEAR, tmp_path, **node)))
    (noted,) = lines(tmp_path / "answers.jsonl")
    assert (noted["asked_epsilon"], noted["asked_bytes"], noted["asked_batch"]) == (200.0, 256.0, 32)


def test_nothing_about_own_data_is_told_unpaid(tmp_path, monkeypatch, caplog, weights):
    """Too few examples, or none that can be loaded: a paid report of zero, which the owner's log explains."""
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def few():\n"
        "    return np.zeros((20, 1, 28, 28), np.float32), np.arange(20) % 10\n"
        "def lost():\n"
        "    raise OSError('no such disk')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, word in [("own:few", "a partition has 5 examples"), ("own:lost", "no such disk")]:
        node = context(LINEAR | {"dataset": name}, tmp_path / name, **PART, min_batch=8, dataset=name)
        payload_of(client_app(asked(weights), node))
        (noted,) = lines(tmp_path / name / "answers.jsonl")
        assert (noted["epsilon"], noted["zero"]) == (200.0, "the app failed")
        assert word in caplog.text


def test_the_report_is_of_the_nodes_own_part(tmp_path, weights):
    """Its residual with the report's block is the gradient: that of partition 1, and of no other."""
    payload_of(client_app(asked(weights, round=4), context(LINEAR, tmp_path, **PART)))
    residual = FolderState(tmp_path).read("test").residual
    sent = residual == 0
    for part in range(3):
        _, gradient = next(problem_of(LINEAR, 3).gradients(weights, 4, [part]))
        assert np.array_equal(residual[~sent], gradient[~sent]) == (part == 1)


@pytest.mark.parametrize("key", ["dataset", "model"])
def test_no_code_is_called_that_the_owner_did_not_name(tmp_path, monkeypatch, key):
    """The run's configuration is the server's: what it names is imported only where the node names it too."""
    (tmp_path / f"planted_{key}.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nfactory = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named, state = {key: f"planted_{key}:factory"}, tmp_path / "state"

    def ask(**own):
        node = context(ready_settings() | named, state, **PART, **own)
        return client_app(asked(np.zeros(300, np.float32), bytes=32), node)

    for other in ({}, {key: "planted:other"}):
        assert ask(**other).error.reason == policy.NOT_ALLOWED
        assert "does not name it" in lines(state / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ran").exists()
    assert not (state / "ledger").exists()
    ask(**named)
    assert (tmp_path / "ran").exists()
