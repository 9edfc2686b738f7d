"""What `sqsgd deploy status` says of nodes and runs; from files, also after crashes."""

import json
import os
import shutil

from small_federation import job, line
from sqsgd.deploy.training import node_status, read_status, run_status

from sqsgd import Ledger
from sqsgd.deploy import submission as training
from sqsgd.deploy.processes import Process, start_time


def spend(ledger, round):
    ledger.spend(400.0, notion="local", task="digits", round=round, scheme="sqsgd")


def test_before_anything_has_run(federation):
    found = read_status(federation)
    assert (found["up"], found["run"], found["wire"]) == (False, None, None)
    assert [node["name"] for node in found["nodes"]] == ["node-0", "node-1"]
    assert all((node["ledger"], node["epsilon_left"]) == ("good", 1600.0) for node in found["nodes"])
    json.dumps(found, allow_nan=False)


def test_a_nodes_own_files_are_read(federation):
    node = federation / "nodes/node-0"
    ledger = Ledger(node / "state/ledger")
    ledger.lower_cap(800.0)
    spend(ledger, 0)
    answer = {"round": 0, "payload_bytes": 273, "serialised_bytes": 580}
    (node / "state/answers.jsonl").write_text(json.dumps(answer) + "\n" + '{"round": 1, "pay')
    refusals = [{"round": 1, "reason": "first"}, {"round": 2, "reason": "epsilon = 900.0 is above"}]
    (node / "state/refusals.jsonl").write_text("".join(json.dumps(each) + "\n" for each in refusals))
    found = node_status(node)
    assert (found["epsilon_spent"], found["epsilon_left"], found["epsilon_cap"]) == (400.0, 400.0, 800.0)
    assert (found["answers"], found["refusals"], found["bytes_up"]) == (1, 2, 273)
    assert found["last_refusal"] == "epsilon = 900.0 is above"
    spend(ledger, 1)
    assert str(node_status(node)["epsilon_left"]) == "0.0"


def test_a_state_folder_elsewhere_and_one_that_was_moved(federation, tmp_path):
    node, elsewhere = federation / "nodes/node-0", tmp_path / "an other disk"
    elsewhere.mkdir()
    spend(Ledger(node / "state/ledger"), 0)
    shutil.move(node / "state", elsewhere / "state")
    with (node / "node.conf").open("a") as file:
        file.write(f'state-dir="{elsewhere}/state"\n')
    found = node_status(node)
    assert (found["epsilon_spent"], found["ledger"]) == (400.0, "good")
    spend(Ledger(elsewhere / "state/ledger"), 1)


def test_an_older_ledger_that_was_put_back_is_named(federation):
    node = federation / "nodes/node-1"
    ledger = Ledger(node / "state/ledger")
    spend(ledger, 0)
    older = ledger.path.read_bytes()
    spend(ledger, 1)
    spend(ledger, 2)
    ledger.path.write_bytes(older)
    found = node_status(node)
    assert found["ledger"].startswith("NOT GOOD: ")
    assert "older copy was restored" in found["ledger"]
    assert found["epsilon_left"] is None


def test_a_missing_ledger_is_named_if_it_is_required(federation):
    node = federation / "nodes/node-0"
    shutil.rmtree(node / "state")
    assert node_status(node)["ledger"].startswith("NOT GOOD: ")
    conf = (node / "node.conf").read_text()
    (node / "node.conf").write_text(conf.replace("require-ledger=true", ""))
    found = node_status(node)
    assert (found["ledger"], found["epsilon_spent"]) == ("none yet", 0.0)
    (node / "node.conf").write_text("state-dir=/without/quotes\n")
    assert "node.conf: line 1: the value of state-dir, /without/quotes, must" in node_status(node)["ledger"]


def test_a_run_is_summed_up(federation):
    server = federation / "server"
    me = Process(pid=os.getpid(), started=start_time(os.getpid()))
    run = job(server, "running", me)
    rejected = [{"node": "12", "reason": "no answer in time"}]
    text = (
        line(0, accuracy=0.5, epsilon=400.0, epsilon_total=400.0) + "\n" + line(1, rejected=rejected) + "\n{"
    )
    (run.folder / "metrics.jsonl").write_text(text)
    found = run_status(server)
    assert (found["status"], found["round"], found["rounds"], found["attempts"]) == ("running", 2, 4, 2)
    assert (found["accuracy"], found["answers"], found["rejected"]) == (0.5, 4, 1)
    assert (found["bytes_up"], found["bytes_down"]) == (4 * 273, 6 * 1000)
    assert found["last_rejected"] == [{"node": "12", "reason": "no answer in time", "round": 1}]
    assert training.last_job(server) == run
    (federation / "live/logs").mkdir(parents=True)
    (federation / "live/logs/node-1.log").write_text("INFO: SuperNode ID: 12\n")
    assert read_status(federation)["run"]["last_rejected"][0]["node"] == "node-1"


def test_slots_are_not_given_names(federation):
    """Where nodes are asked once, who had which slot is a secret, even from this command."""
    run = job(federation / "server", "running", Process(pid=os.getpid(), started=start_time(os.getpid())))
    rejected = [{"slot": 12, "reason": "no answer in time"}]
    (run.folder / "metrics.jsonl").write_text(line(0, rejected=rejected) + "\n")
    (federation / "live/logs").mkdir(parents=True)
    (federation / "live/logs/node-1.log").write_text("INFO: SuperNode ID: 12\n")
    found = read_status(federation)["run"]["last_rejected"]
    assert found == [{"slot": 12, "reason": "no answer in time", "round": 0}]


def test_a_training_with_slots_has_no_serialised_sizes(federation):
    run = job(federation / "server", "running", Process(pid=os.getpid(), started=start_time(os.getpid())))
    sizes = {name: size for name, size in json.loads(line(0)).items() if "serialised" not in name}
    (run.folder / "metrics.jsonl").write_text(json.dumps(sizes) + "\n")
    found = run_status(federation / "server")
    assert (found["bytes_up"], found["bytes_up_serialised"]) == (2 * 273, 0)


def test_evaluations_count_in_both_sizes(federation):
    run = job(federation / "server", "running", Process(pid=os.getpid(), started=start_time(os.getpid())))
    alone = run_status_of(run, line(0, bytes_down_total=3000), federation)
    sizes = {"bytes_down_total": 9000, "bytes_down_serialised_total": 9500}
    both = run_status_of(
        run, line(0, bytes_down_total=12000, evaluation={"metric": "x", **sizes}), federation
    )
    assert both["bytes_down"] - alone["bytes_down"] == 9000
    assert both["bytes_down_serialised"] - alone["bytes_down_serialised"] == 9500


def run_status_of(run, text, federation):
    (run.folder / "metrics.jsonl").write_text(text + "\n")
    return run_status(federation / "server")


def test_a_run_that_nobody_follows_any_more_is_not_called_running(federation):
    job(federation / "server", "running", Process(pid=os.getpid(), started="long ago"))
    assert run_status(federation / "server")["status"].startswith("unknown: it was running")


def test_a_servers_folder_and_a_nodes_folder_have_a_status(federation):
    """After each was moved to a machine of its own, without the federation's folder around it."""
    for name in ("server", "nodes/node-1"):
        shutil.move(federation / name, federation.parent / name.rpartition("/")[2])
    run = job(federation.parent / "server", "running", Process(pid=1, started="long ago"))
    rejected = [{"node": str(number), "reason": f"reason {number % 25}"} for number in range(50)]
    (run.folder / "metrics.jsonl").write_text(line(0, rejected=rejected) + "\n")
    server = read_status(federation.parent / "server")
    assert (server["kind"], server["nodes"], server["run"]["round"]) == ("server", ["node-0", "node-1"], 1)
    assert server["run"]["rejected_by_reason"]["other reasons"] == 10
    node = read_status(federation.parent / "node-1")
    assert (node["kind"], node["name"], node["epsilon_left"]) == ("node", "node-1", 1600.0)
    json.dumps([server, node], allow_nan=False)
