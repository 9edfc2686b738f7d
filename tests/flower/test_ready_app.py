"""The ready app: its folder, its configuration, and a few rounds of it in one process."""

import subprocess
import sys

import pytest
from federation import Nodes, lines, ready_settings
from flwr.app import Context, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")
KEYS = {
    "num-server-rounds", "scheme", "epsilon", "bytes", "lr", "seed", "dataset", "model", "clients-per-round",
    "once",
    "round-timeout", "wait-timeout", "min-answers", "downlink", "out", "resume", "evaluate-every",
    "evaluate-epsilon",
}  # fmt: skip


def test_the_configuration_has_every_key():
    assert ready_settings().keys() >= KEYS


def test_the_apps_folder_is_found_without_loading_flower():
    check = "import sys, sqsgd.flower as f; print(f.app_folder().exists(), 'flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("downlink", ["full", "delta"])
def test_it_trains(tmp_path, downlink):
    from sqsgd.flower.ready_client import app as client_app
    from sqsgd.flower.ready_server import app as server_app

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
