"""A training is followed to its end, and gone on with as long as that leads anywhere."""

import json

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


def test_a_summary_that_is_taken_away_meanwhile_is_no_mistake(tmp_path):
    assert training._modified(tmp_path / "summary.json") == 0.0


def test_a_round_says_what_nodes_told_of_the_model():
    found = {"metric": "accuracy", "asked": 3, "answers": 2, "mean": 1.07, "low": 0.6, "high": 1.0}
    text = training.describe_round({"round": 4, "clients": 3, "evaluation": found}, 5)
    assert text == ("round 5 of 5  accuracy 1.070 on the data of 2 nodes (95 %: 0.600 to 1.000)  3 answers")
    nobody = {"metric": "accuracy", "asked": 3, "answers": 0}
    assert "accuracy on nodes' data unknown: none of 3 answered" in training.describe_evaluation(nobody)
