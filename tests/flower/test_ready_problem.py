"""The problem of the ready app: no code that the owner did not name, no data that are not here."""

import numpy as np
import pytest
from federation import lines, message, ready_settings, request
from flwr.app import Array, ArrayRecord, Context, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")

from sqsgd.flower.ready_client import app
from sqsgd.flower.ready_problem import problem_of
from sqsgd.node import reasons


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
        return app(sent, context)

    weights = np.zeros(300, np.float32)
    for other in ({}, {key: "planted:other"}):
        assert ask(**other).error.reason == reasons.NOT_ALLOWED
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
    assert app(message(request()), context).error.reason == reasons.NOT_ALLOWED
    assert not (tmp_path / "ledger").exists()


def test_a_node_and_the_server_have_the_same_model_whatever_part_they_hold():
    config = ready_settings() | {"model": "mlp"}
    server, node = problem_of(config, 1), problem_of(config, 3)
    assert server.initial().tobytes() == node.initial().tobytes()
    assert sum(len(part) for part in node.parts) == len(server.parts[0]) == 4000
    other = problem_of(config | {"seed": 5}, 3)
    assert other.initial().tobytes() != node.initial().tobytes()


def test_a_configuration_that_lacks_a_key_names_it():
    config = {"dataset": "mnist5k", "model": "linear"}
    with pytest.raises(ValueError, match="the run's configuration lacks batch, seed"):
        problem_of(config, 3)
