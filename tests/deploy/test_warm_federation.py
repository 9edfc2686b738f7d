"""A real federation with an app without the mod, run by children of the nodes' warm processes."""

import json
import os
import shutil
import signal
import sys

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")
if sys.platform != "linux":
    pytest.skip("other systems have no warm process", allow_module_level=True)

from live import SMALL, finished, logs, metrics, sqsgd, wait_until, warm_and_apps

from sqsgd import Ledger
from sqsgd.deploy import processes
from sqsgd.deploy.live_state import read_state

ROUNDS = 5
APP = """\
import json, os
from pathlib import Path
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sqsgd.flower import ready_client

app = ClientApp()
seen = []


@app.train()
def train(msg, context):
    seen.append(1)
    with (Path(context.node_config["state-dir"]) / "apps.jsonl").open("a") as file:
        file.write(json.dumps([os.getpid(), os.getppid(), len(seen)]) + "\\n")
    reply = ready_client.train(msg, context)
    reply.content["metrics"] = MetricRecord({"train-loss": 1.5, "num-examples": 77})
    return reply
"""


def warm_process(folder, node):
    return warm_and_apps(folder, node)[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """After a training in which one node's warm process was killed: the folder, the status, the processes."""
    from sqsgd.flower import app_folder

    place = tmp_path_factory.mktemp("warm")
    folder, app = place / "federation", place / "my_app"
    shutil.copytree(app_folder(), app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "sqsgd_app/client_app.py").write_text(APP)
    sqsgd("deploy", "init", folder, "--nodes", 2, "--rounds", ROUNDS, *SMALL)
    for index in range(2):
        sqsgd("deploy", "allow", folder / f"nodes/node-{index}", app)
    sqsgd("deploy", "up", folder, "--detach", "--app", app)
    mark = read_state(folder)["mark"]
    try:
        wait_until(lambda: (folder / "nodes/node-0/flwr/warm.socket").exists(), 200, "it is warm")
        killed = warm_process(folder, "node-0")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: warm_process(folder, "node-0") not in (None, killed), 200, "another one")
        found = finished(folder)
        other = warm_process(folder, "node-1")
    finally:
        sys.stderr.write(logs(folder))
        sqsgd("deploy", "down", folder)
    return folder, found, other, mark


def test_only_reports_leave_and_all_are_paid(story):
    folder, found, *_ = story
    assert (found["run"]["status"], found["run"]["round"]) == ("finished:completed", ROUNDS)
    assert [line["clients"] for line in metrics(folder)] == [2] * ROUNDS
    for index in range(2):
        state = folder / f"nodes/node-{index}/state"
        assert [entry.round for entry in Ledger(state / "ledger").entries] == list(range(ROUNDS))
        answers = [json.loads(line) for line in (state / "answers.jsonl").read_text().splitlines()]
        assert not any("zero" in answer for answer in answers)
        assert len(answers) == ROUNDS


def apps(folder, node):
    lines = (folder / f"nodes/{node}/state/apps.jsonl").read_text().splitlines()
    return list(zip(*map(json.loads, lines), strict=True))


def test_each_message_runs_in_a_new_child_of_the_warm_process(story):
    folder, _, other, _ = story
    pids, parents, seen = apps(folder, "node-1")
    assert len(set(pids)) == ROUNDS
    assert set(seen) == {1}  # what a module keeps is gone
    assert parents[-1] == other


def test_without_it_messages_take_the_cold_path(story):
    pids, _, seen = apps(story[0], "node-0")
    assert len(set(pids)) == ROUNDS
    assert set(seen) == {1}


def test_down_leaves_no_orphan(story):
    *_, mark = story
    assert processes.marked(mark) == []
