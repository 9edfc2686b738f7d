"""60,000 simulated devices train on MNIST through relay, front and gateway, one report each in a drawn round.

    python benchmarks/collect_mnist.py DIR          # the folder with mnist, as for sqsgd train --data-dir

Each device has one image and one token, and draws its round. In its round it computes its gradient at the
published model, encodes it with secure noise, seals it and sends it. Tokens are signed in one step, and
gradients and reports are computed for many devices at a time; each report has its own sealed request.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/collect"))
from collect_load import bodies, load, sealed, status_of
from devices import ask, make, worker
from test_relay import FRONT, RELAY, free_port, nginx
from typed import typed

from sqsgd import secure_rng
from sqsgd.federation.collect import oblivious
from sqsgd.runs.train import load_problem
from sqsgd.training.settings import load_config

CONFIG = Path(__file__).parents[1] / "experiments/once-mnist.toml"
CONNECTIONS = 100


def current(url, study, round):
    """The weights of a round, once it is open; all through the relay."""
    while True:
        known = json.loads(asked(url, study, "/round"))
        if known["round"] >= round and known["state"] == "open":
            break
        time.sleep(0.1)
    if known["round"] != round:
        raise ValueError(f"round {round} is over: this machine needs longer rounds, --seconds")
    return np.frombuffer(asked(url, study, known["model"]), "<f4").astype(np.float32)


def asked(url, study, path):
    """The body of an answer through the relay."""
    keys = ask(url, "GET", "/digits")[1]
    inner = oblivious.pack_request(oblivious.Request("GET", path, {}, b""), study.request_bytes)
    capsule, opened_by = oblivious.encapsulate(keys, inner)
    given = ask(url, "POST", "/digits", capsule, {"content-type": oblivious.REQUEST})
    return oblivious.read_answer(opened_by(given[1])).body


def train(folder, url, study, problem, drawn):
    """All rounds; returns how many reports were accepted, and the seconds of their requests."""
    accepted, seconds = 0, 0.0
    for round in range(study.rounds):
        users = np.flatnonzero(drawn == round)
        weights = current(url, study, round)
        rows = problem.gradient_rows(weights, round, users)[1]
        tasks = study.made_scheme.tasks(round, [0] * len(users), study.seed, study.bound)
        messages = [row.tobytes() for row in study.made_scheme.encode_many(rows, tasks, secure_rng())]
        keys = ask(url, "GET", "/digits")[1]
        made = [sealed(study, keys, body) for body in bodies(folder, study, round, messages)]
        capsules, openers = zip(*made, strict=True)
        answers, _, taken = asyncio.run(load([url], "/digits", oblivious.REQUEST, capsules, CONNECTIONS))
        told = [status_of(answer, opener) for answer, opener in zip(answers, openers, strict=True)]
        accepted, seconds = accepted + told.count(200), seconds + taken
    return accepted, seconds


def main() -> None:
    """Print accuracy, time and the central guarantee that ``status`` prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="with the datasets")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a round")
    chosen = parser.parse_args()
    problem = load_problem(dataclasses.replace(load_config(CONFIG), data_dir=chosen.folder))
    with ExitStack() as stack:
        place, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
        folder = place / "study"
        study = make(
            folder, dim=problem.dim, users=problem.clients, rounds=40, bytes=48,
            softmax=True, epsilon=chosen.epsilon, visits="drawn", round_seconds=chosen.seconds,
            begins=int(time.time()) + 15, relay=f"http://127.0.0.1:{port}/digits",
        )  # fmt: skip
        drawn = np.random.default_rng().integers(study.rounds, size=problem.clients)
        running = stack.enter_context(worker(folder))
        front = stack.enter_context(nginx(place / "front", FRONT, running.url, free_port()))
        url = stack.enter_context(nginx(place / "relay", RELAY, front, port))
        accepted, seconds = train(folder, url, study, problem, drawn)
        while not (folder / "run/summary.json").exists():
            time.sleep(0.1)
        status = typed(f"sqsgd collect status {folder}").out
        weights = np.frombuffer(asked(url, study, f"/model/{study.id}/{study.rounds}"), "<f4")
        accuracy, _ = problem.evaluate(weights.astype(np.float32))
    print(status)
    found = {
        "accuracy": round(100 * accuracy, 2), "accepted": accepted,
        "reports_per_second": round(accepted / seconds),
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
