"""Metrics of a federation, a server and a node; over HTTP as Prometheus asks."""

import json
import os
import threading
import urllib.error
import urllib.request

import pytest
from small_federation import EVALUATION, job, line

from sqsgd import Ledger
from sqsgd.deploy.gauges import make_server, metrics_text
from sqsgd.deploy.processes import Process, start_time


def test_a_nodes_metrics_are_its_own(federation):
    node = federation / "nodes/node-0"
    Ledger(node / "state/ledger").spend(400.0, notion="local", task="digits", round=0, scheme="sqsgd")
    refusals = [{"reason": f"epsilon = {number}", "told": "not allowed"} for number in range(3)]
    (node / "state/refusals.jsonl").write_text("".join(json.dumps(each) + "\n" for each in refusals))
    (node / "state/answers.jsonl").write_text('{"zero": "the app failed"}\n{"round": 1}\n')
    lines = metrics_text(node).splitlines()
    assert 'sqsgd_node_epsilon_left{node="node-0"} 1200.0' in lines
    assert 'sqsgd_node_zeros_total{node="node-0"} 1' in lines
    assert 'sqsgd_node_refusals_total{node="node-0",reason="not allowed"} 3' in lines
    assert not any("training" in each for each in lines)


def test_a_server_knows_the_training_and_no_nodes_budget(federation):
    run = job(federation / "server", "running", Process(pid=os.getpid(), started=start_time(os.getpid())))
    rejected = [{"node": "12", "reason": "late"}, {"node": "13", "reason": "late"}]
    (run.folder / "metrics.jsonl").write_text(
        line(0, accuracy=0.5, rejected=rejected, evaluation=EVALUATION) + "\n"
    )
    wire = {"passed": 1, "refused": 3, "bytes_up": 10, "bytes_down": 20, "last_refused": ""}
    (federation / "server/gate.json").write_text(json.dumps(wire))
    lines = metrics_text(federation / "server").splitlines()
    for each in (
        "sqsgd_training_round 1",
        "sqsgd_training_accuracy 0.5",
        'sqsgd_training_rejected{reason="late"} 2',
        'sqsgd_training_at_nodes{metric="accuracy",value="mean"} 0.9',
        'sqsgd_training_at_nodes{metric="accuracy",value="low"} 0.6',
        'sqsgd_gate_bytes_total{direction="down"} 20',
    ):
        assert each in lines
    assert not any("epsilon" in each for each in lines)
    assert 'sqsgd_up{part="node-1"} 0' in metrics_text(federation).splitlines()


def test_an_address_that_is_taken_is_named(federation):
    with make_server(federation, ("127.0.0.1", 0)) as first:
        port = first.server_address[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}: .*in use"):
            make_server(federation, ("127.0.0.1", port))


def test_they_are_read_anew_at_each_request(federation):
    node = federation / "nodes/node-1"
    with make_server(node, ("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            for left in ("1600.0", "1200.0"):
                with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:  # noqa: S310
                    assert f'epsilon_left{{node="node-1"}} {left}' in answer.read().decode()
                Ledger(node / "state/ledger").spend(
                    400.0, notion="local", task="digits", round=int(left == "1200.0"), scheme="sqsgd"
                )
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address}/", timeout=60)  # noqa: S310
        finally:
            server.shutdown()
            thread.join()
