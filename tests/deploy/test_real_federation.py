"""One real federation on this machine: TLS, authenticated nodes, and those that must not get in."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")

from live import BIN, documented, environment, finished, logs, sqsgd, status, typed, wait_until
from sqsgd.deploy.node import free_port

from sqsgd import Ledger
from sqsgd.deploy import processes
from sqsgd.deploy.certificates import make_authority, make_node_pair, write_secret
from sqsgd.deploy.live_state import read_state

REASONS = {
    "unregistered": "Failed to activate SuperNode",
    "no-key": "All SuperNodes must be registered",
    "other-authority": "certificate verify failed",
    "plaintext": "Server disconnected without sending a response",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """The federation of docs/deploy.md, made and started as it says; it has trained and is still up."""
    place = tmp_path_factory.mktemp("real")
    folder, commands = place / "federation", documented("On one machine")
    typed(commands[0], place)
    try:
        typed(commands[1], place)
        finished(folder)
        for command in commands[2:-1]:
            typed(command, place)
        yield folder
    finally:
        sys.stderr.write(logs(folder))
        sqsgd("deploy", "down", folder)


def test_training_is_completed_and_learns_something(up):
    found = status(up)
    run = found["run"]
    assert (run["status"], run["round"], run["rounds"], run["attempts"]) == ("finished:completed", 5, 5, 1)
    assert 0.0 <= run["accuracy"] <= 1.0  # a budget that protects takes more than five rounds to learn
    assert (run["answers"], run["rejected"]) == (15, 0)
    assert found["up"]
    for name in ("superlink", "superexec", "gate"):
        assert found[name]["running"], name
        assert found[name]["restarts"] == 0
    folder = Path(run["folder"])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["accuracy"] == run["accuracy"]
    assert (folder / "model.safetensors").stat().st_size > 4 * summary["dim"]
    assert 0 < run["bytes_up"] < run["bytes_up_serialised"] < found["wire"]["bytes_up"]
    assert run["bytes_down"] < found["wire"]["bytes_down"]
    assert "sqsgd: round 5 of 5: 3 answers" in folder.with_name("run-1.log").read_text()


def test_every_node_has_paid_for_what_it_sent(up):
    for node in status(up)["nodes"]:
        ledger = Ledger(up / "nodes" / node["name"] / "state/ledger")
        assert [entry.round for entry in ledger.entries] == [0, 1, 2, 3, 4, 4]
        assert float(ledger.spent) == node["epsilon_spent"] <= 2_008.0
        assert (node["answers"], node["refusals"], node["restarts"], node["ledger"]) == (6, 0, 0, "good")
        assert node["running"]


def test_nodes_tell_how_the_model_does_on_their_data(up):
    """One private number from each, after the last round: the ledgers have it, and the server its mean."""
    found = status(up)["run"]["evaluation"]
    about = {name: found[name] for name in ("round", "metric", "asked", "answers", "rejected", "epsilon")}
    assert about == {
        "round": 4, "metric": "accuracy", "asked": 3, "answers": 3, "rejected": {}, "epsilon": 8.0,
    }  # fmt: skip
    assert found["low"] < found["high"] < found["low"] + 2 * 0.138  # three nodes at this epsilon
    for index in range(3):
        *training, last = Ledger(up / f"nodes/node-{index}/state/ledger").entries
        assert (last.task, last.epsilon) == (f"{training[0].task} evaluate", 8.0)
        assert last.scheme.startswith("evaluation of accuracy ")
        noted = (up / f"nodes/node-{index}/state/answers.jsonl").read_text().splitlines()[-1]
        assert json.loads(noted)["payload_bytes"] == 17
        assert "zero" not in json.loads(noted)  # the app has measured
    assert re.search(r"at nodes    accuracy -?\d\.\d+ on the data of 3", sqsgd("deploy", "status", up).stdout)


def test_status_for_people(up):
    text = sqsgd("deploy", "status", up).stdout
    for words in (
        "node-2",
        "running",
        "finished:completed: round 5 of 5, accuracy",
        "15 accepted, 0 rejected",
    ):
        assert words in text


def test_each_machine_shows_its_own(up, tmp_path):
    """In a server's and in a node's folder: status, metrics, the log of what a round cost, the report."""
    server, node = status(up / "server"), status(up / "nodes/node-1")
    assert (server["kind"], server["run"]["round"]) == ("server", 5)
    assert (node["kind"], node["answers"], node["epsilon_left"]) == ("node", 6, 0.0)
    text = sqsgd("deploy", "metrics", up / "nodes/node-1").stdout
    assert 'sqsgd_node_answers_total{node="node-1"} 6\n' in text
    assert "sqsgd_training_round 5\n" in sqsgd("deploy", "metrics", up / "server").stdout
    log = (up / "live/logs/node-1.log").read_text()
    cost = r"INFO 20\d\d-\S+ \d\d:\d\d:\S+ +sqsgd: round 5 of .*: a report of \d+ bytes for epsilon 400\n"
    assert re.search(cost, log), log[-2000:]
    done = sqsgd("report", up, "--out", tmp_path / "report.html")
    assert "not shown" not in done.stderr
    assert "5 of 5" in sqsgd("deploy", "status", up / "server").stdout


def test_a_second_up_is_refused(up):
    for more in ([], ["--detach"]):
        done = sqsgd("deploy", "up", up, *more, check=False)
        assert done.returncode == 2
        assert "is up already" in done.stderr
    assert status(up)["up"]


def test_strangers_are_refused(up, tmp_path):
    """Each connects with something wrong, at the same time; none is ever given an identity."""
    (tmp_path / "other.pem").write_bytes(make_authority(1).files.public)
    write_secret(tmp_path / "rogue", make_node_pair("rogue").private)
    good = ["--root-certificates", up / "nodes/node-0/ca.pem"]
    wrong = {
        "unregistered": [*good, "--auth-supernode-private-key", tmp_path / "rogue"],
        "no-key": good,
        "other-authority": [
            "--root-certificates", tmp_path / "other.pem",
            "--auth-supernode-private-key", up / "nodes/node-0/key",
        ],
        "plaintext": ["--insecure"],
    }  # fmt: skip
    address = status(up)["address"]
    running = {}
    for name, arguments in wrong.items():
        command = [
            BIN / "flower-supernode", *arguments, "--superlink", address,
            "--port", str(free_port()), "--max-retries", "1",
        ]  # fmt: skip
        with (tmp_path / f"{name}.log").open("w") as log:
            running[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
            )
    for name, child in running.items():
        text = (tmp_path / f"{name}.log").read_text
        try:
            assert child.wait(200) != 0, (name, text())
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        assert "SuperNode ID" not in text(), (name, text())
        assert REASONS[name] in text(), (name, text())
    listed = json.loads(flwr(up, "supernode", "list", "federation", "--format", "json"))
    assert len(listed["nodes"]) == 3


def flwr(folder, *arguments, home=None):
    done = subprocess.run(
        [BIN / "flwr", *arguments],
        capture_output=True,
        text=True,
        env={
            **environment(),
            "FLWR_HOME": str(home or folder / "server/flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
        },
    )
    return done.stdout + done.stderr if home else done.stdout


def test_the_control_api_is_closed_to_those_who_come_through_the_gate(up, tmp_path):
    """Whoever has a node's folder can reach the gate, but can neither list nor submit anything there."""
    address = status(up)["address"]
    config = (
        f'[superlink.federation]\naddress = "{address}"\nroot-certificates = "{up}/nodes/node-0/ca.pem"\n'
    )
    (tmp_path / "config.toml").write_text(f'[superlink]\ndefault = "federation"\n{config}')
    before = status(up)["wire"]["refused"]
    said = flwr(up, "list", "federation", "--format", "json", home=tmp_path)
    assert status(up)["run"]["id"] not in said
    assert '"success": true' not in said
    log = (up / "live/logs/gate.log").read_text()
    assert re.search(r"refused POST /v1/control/\S+ HTTP/1.1: 403", log), log
    assert before == 0


def test_a_node_refuses_code_that_its_owner_did_not_allow(up, tmp_path):
    """The ready app with one line more: submitted by the server's owner, and run by no node."""
    from sqsgd.flower import app_folder

    other = tmp_path / "other_app"
    shutil.copytree(app_folder(), other, ignore=shutil.ignore_patterns("__pycache__"))
    proof = tmp_path / "ran"
    with (other / "sqsgd_app/client_app.py").open("a") as file:
        file.write(f"\nopen({str(proof)!r}, 'w').close()\n")
    settings = up / "server/federation.toml"
    settings.write_text(settings.read_text().replace("rounds = 5", "rounds = 1"))
    ledgers = [(up / f"nodes/node-{index}/state/ledger").read_bytes() for index in range(3)]
    done = subprocess.run(
        [up / "server/train.sh", "--app", other],
        capture_output=True,
        text=True,
        env={**environment(), "SQSGD_LINK_PORT": link_port(up)},
    )
    assert done.returncode == 1, done.stderr  # nobody answered, so nothing was trained
    assert "so nothing was trained; the most frequent reason: the node did not run the app" in done.stderr
    assert "finished:failed" in done.stderr
    assert not list((up / "server/runs/run-2").glob("model*"))
    assert not (up / "server/runs/run-2/summary.json").exists()
    assert "round 1 of 1" in done.stderr
    assert "0 answers  3 rejected" in done.stderr
    assert not proof.exists()
    assert [(up / f"nodes/node-{index}/state/ledger").read_bytes() for index in range(3)] == ledgers
    for node in status(up)["nodes"]:
        assert node["refusals"] == 1
        assert "does not run the app" in node["last_refusal"]


def test_a_server_gets_no_report_of_one_example(up):
    """The server's owner submits the allowed app, and asks for a batch of one; nobody answers."""
    from sqsgd.flower import app_folder

    ledgers = [(up / f"nodes/node-{index}/state/ledger").read_bytes() for index in range(3)]
    asked = 'batch=1 num-server-rounds=1 min-nodes=3 model="mlp"'
    flwr(up, "run", str(app_folder()), "federation", "--stream", "--run-config", asked)
    assert [(up / f"nodes/node-{index}/state/ledger").read_bytes() for index in range(3)] == ledgers
    for node in status(up)["nodes"]:
        assert "batch = 1 is below this node's min-batch = 32" in node["last_refusal"]
        log = (up / f"live/logs/{node['name']}.log").read_text()
        assert re.search(r"asked for round 1 of .*: scheme sqsgd, epsilon 400, 256 bytes, a batch of 1", log)


def link_port(folder):
    return re.search(r"127\.0\.0\.1:(\d+)", (folder / "server/flwr/config.toml").read_text())[1]


def test_certificates_are_renewed_and_a_node_is_revoked_while_the_others_stay_up(up):
    sqsgd("deploy", "renew", up, "--authority", "--days", 900)
    before = status(up)["wire"]["passed"]
    wait_until(lambda: status(up)["wire"]["passed"] > before + 20, 200, "requests after the renewal")
    assert [node["restarts"] for node in status(up)["nodes"]] == [0, 0, 0]
    sqsgd("deploy", "revoke", up, "node-2")
    told = lambda: any("has revoked this node's key" in each["event"] for each in status(up)["events"])  # noqa: E731
    wait_until(told, 200, "its owner is told")
    assert [node["restarts"] for node in status(up)["nodes"]][:2] == [0, 0]


def test_down_leaves_nothing(up):
    """Last: the federation is over after it."""
    mark, command = read_state(up)["mark"], documented("On one machine")[-1]
    assert len(processes.marked(mark)) >= 6
    assert re.fullmatch(r"[6-9] processes stopped\n", typed(command, up.parent))
    assert processes.marked(mark) == []
    found = status(up)
    assert not found["up"]
    assert not any(node["running"] for node in found["nodes"])
    assert json.loads(sqsgd("deploy", "down", up, "--json").stdout)["ended"] == 0
