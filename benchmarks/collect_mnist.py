"""60,000 simulated devices train on MNIST through the real service, one report each over HTTP.

    python benchmarks/collect_mnist.py DIR          # the folder with mnist, as for sqsgd train --data-dir

Each device has one image. It joins with its invitation, computes its gradient at the published model, encodes
it with secure noise, and sends 7 bytes. Gradients are computed for many devices at a time, and the model is
read once per round; the other requests are made by each device.
"""

import argparse
import asyncio
import dataclasses
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/collect"))
from collect_load import Connection
from devices import invited, make, worker

from sqsgd import Task, secure_rng
from sqsgd.core.task import Tasks
from sqsgd.training.settings import load_config
from sqsgd.training.train import load_problem

CONFIG = Path(__file__).parents[1] / "experiments/once-mnist.toml"
CONNECTIONS = 100


async def requests(connections, made):
    """All requests, over a few connections; the answers in their order."""
    answers, waiting = [None] * len(made), list(enumerate(made))

    async def one_after_the_other(connection):
        while waiting:
            i, request = waiting.pop()
            while True:
                status, body = await connection.ask(*request)
                if status != 503:
                    break
                await asyncio.sleep(0.02)
            if status != 200:
                raise ValueError(f"{status}: {body!r}")
            answers[i] = json.loads(body)

    await asyncio.gather(*map(one_after_the_other, connections))
    return answers


async def train(url, study, problem, invitations):
    """All rounds; returns the seconds that the requests took."""
    loop, (host, port) = asyncio.get_running_loop(), url.removeprefix("http://").split(":")
    connections = [(await loop.create_connection(Connection, host, int(port)))[1] for _ in range(CONNECTIONS)]
    order, seconds = np.random.default_rng().permutation(problem.clients), 0.0
    for round in range(study.rounds):
        users = order[round * study.slots : (round + 1) * study.slots]
        tickets = [secrets.token_hex(32) for _ in users]
        bodies = [
            {"study": study.id, "ticket": ticket, "invitation": invitations.pop()} for ticket in tickets
        ]
        started = time.perf_counter()
        joined = await requests(connections, [(b"/join", json.dumps(body).encode()) for body in bodies])
        seconds += time.perf_counter() - started
        if {answer["task"]["round"] for answer in joined} != {round}:
            raise ValueError("a device was given a slot of another round")
        weights = await asyncio.to_thread(model, url, study, round)
        rows = problem.gradient_rows(weights, round, users)[1]
        tasks = Tasks(Task(**joined[0]["task"]), [answer["task"]["client"] for answer in joined])
        messages = study.made_scheme.encode_many(rows, tasks, secure_rng())
        headers = [b"authorization: Bearer %s\r\n" % ticket.encode() for ticket in tickets]
        started = time.perf_counter()
        await requests(
            connections,
            [(b"/report", row.tobytes(), header) for row, header in zip(messages, headers, strict=True)],
        )
        seconds += time.perf_counter() - started
    return seconds


def model(url, study, round):
    """The published weights before a round."""
    with urlopen(f"{url}/model/{study.id}/{round}") as answer:  # noqa: S310
        return np.frombuffer(answer.read(), "<f4").astype(np.float32)


def main() -> None:
    """Print accuracy, time and the central guarantee."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="with the datasets")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=1)
    chosen = parser.parse_args()
    problem = load_problem(dataclasses.replace(load_config(CONFIG), data_dir=chosen.folder))
    for _ in range(chosen.runs):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "study"
            study = make(
                folder, dim=problem.dim, users=problem.clients, rounds=40, bytes=48, softmax=True,
                epsilon=chosen.epsilon,
            )  # fmt: skip
            invitations = invited(folder, study, problem.clients)
            with worker(folder) as running:
                started = time.perf_counter()
                requesting = asyncio.run(train(running.url, study, problem, invitations))
                whole = time.perf_counter() - started
                while not (folder / "run/summary.json").exists():
                    time.sleep(0.1)
                accuracy, _ = problem.evaluate(model(running.url, study, study.rounds))
            summary = json.loads((folder / "run/summary.json").read_text())
        print(
            json.dumps(
                {
                    "accuracy": round(100 * accuracy, 2),
                    "reports": summary["users"],
                    "seconds": round(whole, 1),
                    "seconds_of_requests": round(requesting, 1),
                    "reports_per_second": round(summary["users"] / requesting),
                    "central": summary["central_note"],
                }
            )
        )


if __name__ == "__main__":
    main()
