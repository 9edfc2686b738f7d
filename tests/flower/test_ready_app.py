"""The ready app: its folder, its configuration, and a few rounds of it in one process."""

import subprocess
import sys
import tomllib

import pytest
from federation import Nodes, lines
from flwr.app import Context, RecordDict

from sqsgd.flower import app_folder

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")
KEYS = {
    "num-server-rounds", "scheme", "epsilon", "bytes", "lr", "seed", "dataset", "model", "clients-per-round",
    "once",
    "round-timeout", "wait-timeout", "min-answers", "downlink", "out", "resume", "evaluate-every",
}  # fmt: skip


def settings() -> dict:
    return tomllib.loads((app_folder() / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_the_configuration_has_every_key():
    assert settings().keys() >= KEYS


def test_the_apps_folder_is_found_without_loading_flower():
    check = "import sys, sqsgd.flower as f; print(f.app_folder().exists(), 'flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("downlink", ["full", "delta"])
def test_it_trains(tmp_path, downlink):
    from sqsgd.flower.client_app import app as client_app
    from sqsgd.flower.server_app import app as server_app

    config = settings() | {"num-server-rounds": 12, "out": str(tmp_path / "run"), "downlink": downlink}
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
    from federation import message, request

    from sqsgd.flower import wire
    from sqsgd.flower.client_app import app

    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path)}
    for more, word in [({}, "partition-id"), ({"partition-id": 3, "num-partitions": 3}, "below")]:
        context = Context(
            run_id=1, node_id=5, node_config=owner | more, state=RecordDict(), run_config=settings()
        )
        assert app(message(request()), context).error.reason == wire.NOT_ALLOWED
        assert word in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("key", ["dataset", "model"])
def test_no_code_is_called_that_the_owner_did_not_name(tmp_path, monkeypatch, key):
    """The run's configuration is the server's: what it names is imported only where the node names it too."""
    from federation import message, request

    from sqsgd.flower import wire
    from sqsgd.flower.client_app import app

    (tmp_path / f"planted_{key}.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nfactory = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = {key: f"planted_{key}:factory"}
    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path / "state"), "partition-id": 0, "num-partitions": 3}

    def ask(**more):
        context = Context(
            run_id=1, node_id=5, node_config=owner | more, state=RecordDict(), run_config=settings() | named
        )
        return app(message(request()), context)

    for other in ({}, {key: "planted:other"}):
        assert ask(**other).error.reason == wire.NOT_ALLOWED
        assert "does not name it" in lines(tmp_path / "state" / "refusals.jsonl")[-1]["reason"]
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "state" / "ledger").exists()
    ask(**named)
    assert (tmp_path / "ran").exists()


def test_a_node_without_the_data_refuses_and_pays_nothing(tmp_path, monkeypatch):
    from federation import message, request

    from sqsgd.flower import wire
    from sqsgd.flower.client_app import app

    monkeypatch.setenv("SQSGD_DATA", str(tmp_path / "nothing"))
    owner = {"max-epsilon": 1e6, "state-dir": str(tmp_path), "partition-id": 0, "num-partitions": 3}
    config = settings() | {"dataset": "fashion-mnist"}
    context = Context(run_id=1, node_id=5, node_config=owner, state=RecordDict(), run_config=config)
    assert app(message(request()), context).error.reason == wire.NOT_ALLOWED
    assert not (tmp_path / "ledger").exists()
