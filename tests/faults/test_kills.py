"""SIGKILL in the middle of a training: of a node, of the server's app, of the SuperLink. It is completed."""

import contextlib
import json
import os
import signal
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")

from live import Live, metrics, sqsgd, status, wait_until
from small_app import small_app

from sqsgd import Ledger, make_scheme
from sqsgd.core.task import Task
from sqsgd.federation.deploy.federation import load_federation
from sqsgd.training import Settings, server_step
from sqsgd.training.run_folder import RunFolder

pytestmark = pytest.mark.faults
ROUNDS = 5
SLOW = """
import os, time
if os.environ["FLWR_HOME"].endswith("node-1/flwr"):
    compute, app = train, ClientApp()

    @app.train()
    def slow(msg, context):
        time.sleep(3)
        return compute(msg, context)
"""
"""Node 1 answers after node 0, so that there is time to kill what waits for it."""


class Story:
    """A training that was disturbed three times, and what was seen."""

    def __init__(self, live):
        self.live, self.folder = live, live.folder
        self.node = self.folder / "nodes/node-1/state"
        self.run = self.folder / "server/runs/run-1"

    def rounds(self):
        return len(metrics(self.folder))

    def answers(self, node="node-0"):
        path = self.folder / f"nodes/{node}/state/answers.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def job(self):
        return json.loads((self.folder / "server/runs/run-1.json").read_text())

    def kept(self, node="node-1"):
        """What a node remembers of the training, with its checksum."""
        from sqsgd.federation.node.answer import Kept

        (path,) = (self.folder / f"nodes/{node}/state/tasks").glob("?" * 32)
        return Kept.from_bytes(path.read_bytes())

    def step_from_the_nodes_reports(self):
        """Where an undisturbed server would have arrived: its checkpoint, and what the nodes have sent."""
        state, about = RunFolder(self.run).load()
        asked = load_federation(self.folder)
        scheme = make_scheme("sqsgd", dim=state.weights.size, epsilon=asked.epsilon, bytes=asked.bytes)
        assert scheme.fingerprint == about["fingerprint"]
        reports = []
        for node in ("node-0", "node-1"):
            kept = self.kept(node)
            assert kept.request.task.round == state.round
            task = Task(
                round=state.round,
                client=int(self.live.number(node)),
                seed=about["settings"]["seed"],
                dim=state.weights.size,
                bound=state.bound,
            )
            reports.append((task, kept.payload, 1.0))
        settings = Settings(**about["settings"])
        after, _ = server_step(scheme, settings, state, reports)
        return after

    def kill_a_node(self):
        """While its app computes on data for which it has paid."""
        wait_until(lambda: self.rounds() >= 1, 600, "a round")
        ledger = self.node / "ledger"
        self.ledger_before, self.kept_before = ledger.read_bytes(), self.kept()
        wait_until(lambda: ledger.read_bytes() != self.ledger_before, 600, "node 1 pays for another round")
        for pid in self.live.of_node("node-1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.ledger_after, self.kept_after = ledger.read_bytes(), self.kept()
        self.killed_in = self.rounds()
        answered = len(self.answers("node-1"))
        wait_until(lambda: len(self.answers("node-1")) > answered, 600, "node 1 answers again")

    def kill_the_server_app(self):
        """Once both nodes have answered a round that the server has not written down."""

        def unwritten(node="node-0"):
            answers = self.answers(node)
            return bool(answers) and answers[-1]["round"] >= self.rounds()

        while True:
            wait_until(unwritten, 600, "an answer")
            (server,) = self.live.processes("flwr-serverapp")
            os.kill(server, signal.SIGSTOP)  # so that nothing is written between a look and the kill
            if unwritten():
                break
            os.kill(server, signal.SIGCONT)
        wait_until(lambda: unwritten("node-1"), 600, "the other node's answer")
        self.lost_round = self.rounds()
        self.expected = self.step_from_the_nodes_reports()
        os.kill(server, signal.SIGKILL)
        self.attempt = self.job()["run_id"]
        wait_until(lambda: RunFolder(self.run).load()[0].round > self.lost_round, 600, "the training goes on")
        self.reached, _ = RunFolder(self.run).load()

    def kill_the_superlink(self):
        """In the middle of a round."""
        time.sleep(2)
        self.run_before = self.job()["run_id"]
        (link,) = self.live.processes("bin/flower-superlink")
        os.kill(link, signal.SIGKILL)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    place = tmp_path_factory.mktemp("kills")
    folder, app = place / "federation", small_app(place / "plain", SLOW)
    options = ("--nodes", 2, "--rounds", ROUNDS, "--round-timeout", 100, "--min-nodes", 2)
    sqsgd("deploy", "init", folder, *options, "--scheme", "sqsgd")  # which keeps a residual
    for node in ("node-0", "node-1"):
        sqsgd("deploy", "allow", folder / "nodes" / node, app)
    live = Live(folder, 2)
    try:
        story, training = Story(live), live.train("--app", app)
        story.kill_a_node()
        story.kill_the_server_app()
        story.kill_the_superlink()
        assert training.wait(3000) == 0, live.log.read_text()[-5000:]
        story.status = status(folder)
        yield story
    finally:
        live.end()


def test_a_killed_nodes_ledger_goes_on_and_counts_everything_that_left(story):
    assert story.ledger_after.startswith(story.ledger_before)
    ledger = Ledger(story.node / "ledger")
    assert (story.node / "ledger").read_bytes().startswith(story.ledger_after)
    paid = [entry.round for entry in ledger.entries]
    assert paid == sorted(set(paid))
    assert {answer["round"] for answer in story.answers("node-1")} <= set(paid)
    number = str(story.live.number("node-1"))
    accepted = [
        line["round"]
        for line in metrics(story.folder)
        if line["clients"]
        and number not in [each["node"] for each in line["rejected"]]
        and line["asked"] == 2
    ]
    assert set(accepted) <= set(paid)
    assert max(paid) > story.killed_in  # it answers again
    assert story.status["nodes"][1]["ledger"] == "good"


def test_a_killed_nodes_memory_is_whole(story):
    """The residual of the last round that was written down, to the bit, or that of the round after it."""
    before, after = story.kept_before, story.kept_after
    rounds = [each.request.task.round for each in (before, after)]
    assert rounds[1] - rounds[0] in (0, 1)
    if rounds[0] == rounds[1]:
        assert np.array_equal(after.residual, before.residual)
    assert np.isfinite(story.kept().residual).all()
    assert story.kept().request.task.round == max(
        entry.round for entry in Ledger(story.node / "ledger").entries
    )


def test_a_killed_server_goes_on_to_the_same_model(story):
    """To the bit: the nodes, asked for the lost round again, repeat the very reports that the killed server
    would have averaged, for which the request must be the same too (model, bound and seed)."""
    assert story.reached.round == story.expected.round == story.lost_round + 1
    np.testing.assert_array_equal(story.reached.weights, story.expected.weights)
    assert story.reached.bound == story.expected.bound
    assert story.status["run"]["attempts"] == 2
    assert metrics(story.folder)[story.lost_round]["clients"] == 2
    for node in ("node-0", "node-1"):
        again = [answer for answer in story.answers(node) if answer.get("again")]
        assert [answer["round"] for answer in again] == [story.lost_round]
        paid = [entry.round for entry in Ledger(story.folder / f"nodes/{node}/state/ledger").entries]
        assert paid.count(story.lost_round) == 1


def test_a_killed_superlink_comes_back_and_the_run_goes_on(story):
    run = story.status["run"]
    assert run["id"] == story.run_before != story.attempt
    assert (run["status"], run["round"], run["rounds"]) == ("finished:completed", ROUNDS, ROUNDS)
    assert [line["round"] for line in metrics(story.folder)] == list(range(ROUNDS))
