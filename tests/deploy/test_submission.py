"""A training is followed to its end, and gone on with as long as that leads anywhere."""

import json
import tomllib
from pathlib import Path

import pytest

from sqsgd.deploy import submission as training
from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation


class Flower:
    """What Flower's commands answer; each run of the server app has the rounds that are planned for it."""

    def __init__(self, server, plan):
        self.run, self.plan, self.runs = server / "runs/run-1", plan, 0

    def __call__(self, server, command, *arguments):
        if command == "run":
            self.run.mkdir(parents=True, exist_ok=True)
            self.runs += 1
            return json.dumps({"run-id": self.runs})
        if command == "list":
            clients, status = self.plan[self.runs - 1]
            with (self.run / "metrics.jsonl").open("a") as file:
                for number, count in enumerate(clients, len(training.metrics(self.run))):
                    line = {"round": number, "clients": count, "stepped": count >= 2}
                    file.write(json.dumps(line) + "\n")
            return json.dumps({"runs": [{"status": status}]})
        return ""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_ASK_EVERY", 0.0)
    federation = Federation(nodes=2, rounds=30, min_answers=2)
    server = write_federation(tmp_path / "federation", federation, 30) / "server"

    def follow(*plan):
        flower = Flower(server, plan)
        monkeypatch.setattr(training, "flwr", flower)
        told = []
        return training.train(server, federation, tell=told.append), flower, "\n".join(told)

    return follow


@pytest.mark.parametrize("few", [0, 1])
def test_rounds_without_enough_answers_lead_nowhere(trained, few):
    """The strategy ends after ten of them; another attempt would end after another ten, and so on."""
    job, flower, told = trained(([few] * 10, "finished:failed"), ([few] * 10, "finished:failed"))
    assert "none of 10 rounds had enough answers, so nothing was trained" in told
    assert (job.status, job.attempts, flower.runs) == ("finished:failed", 1, 1)


def test_a_server_app_that_died_goes_on_as_long_as_it_gets_further(trained):
    job, flower, told = trained(
        ([2, 2, 2], "finished:failed"), ([2, 0], "finished:failed"), ([0] * 10, "finished:failed")
    )
    assert (job.status, job.attempts, flower.runs) == ("finished:failed", 3, 3)
    assert "ended as finished:failed after round 5: resuming" in told


def test_a_completed_training_is_over(trained):
    job, flower, _ = trained(([2] * 30, "finished:completed"))
    assert (job.status, job.attempts, flower.runs) == ("finished:completed", 1, 1)
    assert training.last_job(job.folder.parents[1]) == job


def test_an_app_gets_the_settings_that_it_declares(tmp_path, monkeypatch):
    """Flower refuses a run with others, such as an ordinary app's with all of the federation's."""
    federation, told, given = Federation(nodes=2, rounds=7, epsilon=40.0), [], []
    server = write_federation(tmp_path / "federation", federation, 30) / "server"

    def flower(server, command, *arguments):
        if command == "run":
            given.append(tomllib.loads(Path(arguments[-3]).read_text()))
        return json.dumps({"run-id": 1, "runs": [{"status": "finished:completed"}]})

    monkeypatch.setattr(training, "flwr", flower)
    monkeypatch.setattr(training, "_ASK_EVERY", 0.0)
    (app := tmp_path / "app").mkdir()
    with pytest.raises(ValueError, match=r"app is not a Flower app: it has no pyproject\.toml"):
        training.train(server, federation, app=app)
    (app / "pyproject.toml").write_text(
        "[tool.flwr.app.config]\nnum-server-rounds = 3\nepsilon = 1.0\nlr = 0.1\n"
    )
    training.train(server, federation, app=app, tell=told.append)
    assert given == [{"num-server-rounds": 7, "epsilon": 40.0, "lr": 0.0}]
    assert told[0].startswith(
        "the app decides these itself, since its pyproject.toml does not have them: scheme, "
    )
    training.train(server, federation)
    assert given[1] == federation.run_config(server / "runs/run-2", resume=False)


def test_why_an_app_failed_is_said(trained, monkeypatch):
    """Also where no round was recorded, as by an app that writes no metrics."""
    log = (
        "Traceback ...\n  File: x\nsqsgd.flower.gathering.TooFewNodes: 1 nodes are connected\nExit Code: 1\n"
    )
    answer = Flower.__call__
    monkeypatch.setattr(
        Flower,
        "__call__",
        lambda self, at, command, *more: log if command == "log" else answer(self, at, command, *more),
    )
    job, _, told = trained(([], "finished:failed"))
    assert f"1 nodes are connected; see {job.folder}.log" in told
    assert "are connected" not in trained(([2] * 30, "finished:completed"))[2]


def test_what_flower_says_is_shown_without_its_json(tmp_path, monkeypatch):
    said = "Using SuperLink: x\n\nConnection to the SuperLink is unavailable. Please check."
    text = json.dumps({"success": False, "error-message": said})
    monkeypatch.setattr(training, "flwr", lambda *_: text)
    with pytest.raises(OSError, match=r"failed: Using .* Please check. Is ./superlink.sh running\?$"):
        training.flower_status(tmp_path, "1")


def test_a_summary_that_is_taken_away_meanwhile_is_no_mistake(tmp_path):
    assert training._modified(tmp_path / "summary.json") == 0.0


def test_a_round_says_what_nodes_told_of_the_model():
    found = {"metric": "accuracy", "asked": 3, "answers": 2, "mean": 1.07, "low": 0.6, "high": 1.0}
    text = training.describe_round({"round": 4, "clients": 3, "evaluation": found}, 5)
    assert text == ("round 5 of 5  accuracy 1.070 on the data of 2 nodes (95 %: 0.600 to 1.000)  3 answers")
    nobody = {"metric": "accuracy", "asked": 3, "answers": 0}
    assert "accuracy on nodes' data unknown: none of 3 answered" in training.describe_evaluation(nobody)
