"""What run folders and ledgers say of nodes and runs, also after crashes; how a training is submitted."""

import json
import shutil

import pytest
from small_federation import job, line

from sqsgd import Ledger
from sqsgd.federation.deploy import training
from sqsgd.federation.deploy.training import (
    last_job,
    node_status,
    read_status,
    train,
)


def spend(ledger, round):
    ledger.spend(400.0, notion="local", task="digits", round=round, scheme="sqsgd")


def test_a_nodes_own_files_are_read(federation, tmp_path):
    node = federation / "nodes/node-0"
    ledger = Ledger(node / "state/ledger")
    ledger.lower_cap(800.0)
    spend(ledger, 0)
    answer = {"round": 0, "payload_bytes": 273}
    (node / "state/answers.jsonl").write_text(json.dumps(answer) + "\n" + '{"round": 1, "pay')
    refusals = [{"round": 1, "reason": "first"}, {"round": 2, "reason": "epsilon = 900.0 is above"}]
    (node / "state/refusals.jsonl").write_text("".join(json.dumps(each) + "\n" for each in refusals))
    shutil.move(node / "state", tmp_path / "another disk")
    with (node / "node.conf").open("a") as file:
        file.write(f'state-dir="{tmp_path}/another disk"\n')
    found = node_status(node)
    assert (found["epsilon_spent"], found["epsilon_left"], found["epsilon_cap"]) == (400.0, 400.0, 800.0)
    assert (found["answers"], found["refusals"], found["bytes_up"]) == (1, 2, 273)
    assert (found["last_refusal"], found["ledger"]) == ("epsilon = 900.0 is above", "good")


def test_a_ledger_that_is_missing_or_was_restored_is_named(federation):
    one, other = (federation / f"nodes/node-{index}" for index in (0, 1))
    shutil.rmtree(one / "state")
    ledger = Ledger(other / "state/ledger")
    spend(ledger, 0)
    older = ledger.path.read_bytes()
    spend(ledger, 1)
    spend(ledger, 2)
    ledger.path.write_bytes(older)
    assert node_status(one)["ledger"].startswith("NOT GOOD: ")
    assert "older copy was restored" in node_status(other)["ledger"]
    assert node_status(other)["epsilon_left"] is None


def test_a_run_is_summed_up(federation):
    """In a server's folder that was moved to a machine of its own."""
    server = shutil.move(federation / "server", federation.parent / "server")
    rejected = [{"node": str(number), "reason": f"reason {number % 25}"} for number in range(50)]
    rounds = [line(0, accuracy=0.5, epsilon_total=400.0), line(1, rejected=rejected, stepped=False)]
    run = job(server, lines=[*rounds, "{"])
    found = read_status(server)
    assert (found["kind"], found["nodes"], found["keys"]) == ("server", [], ["node-0", "node-1"])
    found = found["run"]
    assert (found["status"], found["round"], found["rounds"], found["attempts"]) == ("running", 2, 4, 2)
    assert (found["accuracy"], found["answers"], found["rejected"]) == (0.5, 4, 50)
    assert (found["bytes_up"], found["bytes_down"], found["rounds_stepped"]) == (2 * 546, 4000, 1)
    assert len(found["rejected_by_reason"]) == 21  # a node could invent any number
    assert found["rejected_by_reason"]["other reasons"] == 10
    assert last_job(server) == run


@pytest.mark.parametrize("status", [None, "finished:completed"])
def test_where_there_is_nothing_to_resume(federation, status):
    if status:
        job(federation / "server", status, [line(round) for round in range(4)])
    with pytest.raises(ValueError, match="nothing to resume"):
        train(federation, resume=True)


class Flower:
    """Stands for the ``flwr`` command: each run ends as the story says, after so many rounds."""

    def __init__(self, server, story):
        self.server, self.story, self.calls, self.runs = server, iter(story), [], 0

    def __call__(self, server, *arguments):
        self.calls.append(arguments)
        if arguments[0] == "run":
            self.runs += 1
            self.status, rounds = next(self.story)
            (folder := self.server / "runs/run-1").mkdir(exist_ok=True)
            (folder / "metrics.jsonl").write_text("".join(line(round) + "\n" for round in range(rounds)))
            return json.dumps({"success": True, "run-id": 100 + self.runs})
        return json.dumps({"runs": [{"status": self.status}]}) if arguments[0] == "list" else "a log\n"


@pytest.mark.parametrize(
    ("story", "attempts"),
    [
        ([("finished:completed", 4)], 1),
        ([("finished:failed", 2), ("finished:failed", 3), ("finished:completed", 4)], 3),
        ([("finished:failed", 0)], 1),
        ([("finished:failed", 2), ("finished:failed", 2)], 2),
    ],
)
def test_a_training_is_resumed_while_it_gets_further(federation, monkeypatch, story, attempts):
    server = federation / "server"
    flower, settings = Flower(server, story), []
    monkeypatch.setattr(training, "_flwr", flower)
    monkeypatch.setattr(training, "_ASK_EVERY", 0.0)
    monkeypatch.setattr(training, "register", lambda *_: None)
    read = training.tomli_w.dumps
    monkeypatch.setattr(training.tomli_w, "dumps", lambda values: settings.append(values) or read(values))
    done = train(federation)
    assert (done.status, done.attempts, flower.runs) == (story[-1][0], attempts, attempts)
    assert [each["resume"] for each in settings] == [False, *[True] * (attempts - 1)]
    assert settings[0]["out"] == str(server / "runs/run-1")
    assert last_job(server) == done


def test_an_app_gets_the_settings_that_it_declares(federation, tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="is not a Flower app"):
        train(federation, app=tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\nepsilon = 1.0\nnum-server-rounds = 1\n")
    flower = Flower(federation / "server", [("finished:completed", 4)])
    monkeypatch.setattr(training, "_flwr", flower)
    monkeypatch.setattr(training, "_ASK_EVERY", 0.0)
    monkeypatch.setattr(training, "register", lambda *_: None)
    train(federation, app=tmp_path)
    assert "decided by the app itself" in capsys.readouterr().err
    written = (federation / "server/flwr/run-config.toml").read_text()
    assert sorted(text.split()[0] for text in written.splitlines()) == ["epsilon", "num-server-rounds"]
