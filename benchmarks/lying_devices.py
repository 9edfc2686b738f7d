"""What lying devices do to a model that is trained from one report per user: accuracy against their share.

    python benchmarks/lying_devices.py DIR          # the folder with mnist, as for sqsgd train --data-dir

A simulation of the study of benchmarks/collect_mnist.py, with the real scheme and real messages. Liars send
well-formed messages, or they would be refused. They know the model and each other:

* labels: report honestly about an image with the wrong label;
* reversed: the message whose estimate points most against their gradient, without noise;
* together: the message that points most towards "every image is a zero", without noise.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

from sqsgd import secure_rng
from sqsgd.core.task import Tasks
from sqsgd.federation.collect.study import make_study
from sqsgd.runs.train import load_problem
from sqsgd.training import initial_state, server_step
from sqsgd.training.algorithm import task_for
from sqsgd.training.settings import load_config

CONFIG = Path(__file__).parents[1] / "experiments/once-mnist.toml"
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2)
ATTACKS = ("labels", "reversed", "together")


def nearest(scheme, rows, tasks):
    """The messages whose estimates point most along the rows: the largest coordinate, and no noise."""
    turned = scheme.transforms[-1].forward_many(rows, tasks)
    places = np.abs(turned).argmax(axis=1)
    codes = 2 * places + (turned[np.arange(len(rows)), places] < 0)
    return np.stack(
        [
            np.frombuffer(scheme.seal((np.array([code], np.uint16),), task), np.uint8)
            for code, task in zip(codes, tasks, strict=True)
        ]
    )


def lies(attack, problem, wrong, zeros, weights, round, users):
    """The vectors that liars want the server to see."""
    if attack == "labels":
        return wrong.gradient_rows(weights, round, users)[1]
    if attack == "reversed":
        return -problem.gradient_rows(weights, round, users)[1]
    return zeros.gradient_rows(weights, round, users)[1]


def relabelled(problem, labels):
    """The same images with other labels."""
    return dataclasses.replace(problem, dataset=dataclasses.replace(problem.dataset, train_labels=labels))


def trained(problem, study, attack, share):
    """The accuracy with a share of liars."""
    scheme, settings = study.made_scheme, study
    true = problem.dataset.train_labels
    wrong, zeros = relabelled(problem, (true + 1) % 10), relabelled(problem, true * 0)
    random = np.random.default_rng()
    order = random.permutation(problem.clients)
    lying = np.zeros(problem.clients, bool)
    lying[random.permutation(problem.clients)[: round(share * problem.clients)]] = True
    state = initial_state(problem.initial(), settings)
    for number in range(study.rounds):
        users = order[number * study.slots : (number + 1) * study.slots]
        reports = []
        for mine, liars in ((users[~lying[users]], False), (users[lying[users]], True)):
            if not len(mine):
                continue
            slots = np.flatnonzero(np.isin(users, mine))
            tasks = Tasks(task_for(0, settings, state), slots)
            mine = users[slots]
            if liars:
                rows = lies(attack, problem, wrong, zeros, state.weights, number, mine)
            else:
                rows = problem.gradient_rows(state.weights, number, mine)[1]
            if liars and attack != "labels":
                messages = nearest(scheme, rows, tasks)
            else:
                messages = scheme.encode_many(rows, tasks, secure_rng())
            reports.append((tasks, messages, None))
        state, _ = server_step(scheme, settings, state, reports, paid=())
    return problem.evaluate(state.weights)[0]


def pull(study, count=2000):
    """How far a liar's message moves the mean along its direction, in multiples of the bound."""
    scheme, random = study.made_scheme, np.random.default_rng(3)
    rows = random.normal(size=(count, study.dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    tasks = Tasks(task_for(0, study, initial_state(np.zeros(study.dim, np.float32), study)),
                  np.arange(count))  # fmt: skip
    found = [
        float(scheme.decode(message.tobytes(), task) @ row)
        for message, task, row in zip(nearest(scheme, rows, tasks), tasks, rows, strict=True)
    ]
    return np.mean(found) / study.bound, np.max(found) / study.bound


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="with the datasets")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    config = dataclasses.replace(load_config(CONFIG), data_dir=chosen.folder)
    problem = load_problem(config)
    study = make_study(
        {"name": "liars", "dim": problem.dim, "users": problem.clients, "softmax": True,
         "epsilon": chosen.epsilon}
    )  # fmt: skip
    mean, most = pull(study)
    print(f"a liar's report moves the sum by {mean:.2f} bounds on average, {most:.2f} at most")
    print("an honest one by its gradient in expectation, which is at most 1 bound long")
    print(f"{'share':>6}", *(f"{attack:>10}" for attack in ATTACKS))
    for share in SHARES:
        reached = []
        for attack in ATTACKS if share else ATTACKS[:1]:
            runs = [trained(problem, study, attack, share) for _ in range(chosen.runs)]
            reached.append(f"{100 * np.mean(runs):10.2f}")
        print(f"{share:6.0%}", *reached)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
