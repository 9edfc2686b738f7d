"""The default learning rate of every scheme against the best of a grid: LeNet-5 on the embedded digits.

    python benchmarks/default_rates.py rates.json [--epsilons 400 100 40] [--schemes vqsgd piecewise]

For each scheme and budget: one run at the default, and runs at the rates of a grid around the best, until both
of its neighbours are worse. Every run is stored as it ends, and none is repeated. With ``--data-dir``, each run
is also measured on images of MNIST that are not among the embedded ones: constants are chosen on those.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path

from sqsgd.experiments import runner
from sqsgd.federated import initial_state, run
from sqsgd.files.durable import write_atomically
from sqsgd.learning.datasets import Dataset, load_dataset
from sqsgd.runs.config import RunConfig
from sqsgd.schemes import SCHEMES

GRID = tuple(round(step * 10.0**power, 6) for power in range(-5, 3) for step in (1, 3))
ARMS = {name: RunConfig(scheme=name) for name in SCHEMES} | {
    "sqsgd-paper adaptive": RunConfig(scheme="sqsgd-paper", options={"adaptive": True})
}
LOST = 1e3
"""A mean loss above which a run is given up: it has diverged."""


def other_digits(data_dir: Path, count: int = 5000) -> Dataset:
    """Images of MNIST's training set that are not embedded, in the place of the test images."""
    embedded, mnist = load_dataset("mnist5k"), load_dataset("mnist", data_dir)
    known = {
        image.numpy().tobytes() for part in (embedded.train_inputs, embedded.test_inputs) for image in part
    }
    new = [i for i, image in enumerate(mnist.train_inputs) if image.numpy().tobytes() not in known][:count]
    return replace(mnist, test_inputs=mnist.train_inputs[new], test_labels=mnist.train_labels[new])


class Table:
    """Finished runs, in a file, and new ones."""

    def __init__(self, path: Path, rounds: int, others: Dataset | None) -> None:
        self.path, self.rounds, self.others = path, rounds, others
        self.runs: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}

    def result(self, arm: str, epsilon: float, lr: float = 0.0) -> dict[str, float]:
        """One run, at this rate, which falls linearly to zero, or at the default."""
        decay = "linear" if lr else "auto"
        config = replace(ARMS[arm], epsilon=epsilon, rounds=self.rounds, lr=lr, decay=decay, workers=1)
        made = runner.prepare(config, Path("no such folder"))
        rate, falls = made.settings.optimizer.rate, bool(made.settings.decay_rounds)
        budget = epsilon if made.scheme.privacy.is_private else math.inf
        key = f"{arm} | {budget:g} | {rate:.4g}{'' if falls else ' constant'}"
        if key not in self.runs:
            self.runs[key] = {"rate": rate, **self._trained(made)}
            write_atomically(self.path, json.dumps(self.runs, indent=1).encode())
            print(key, self.runs[key], flush=True)
        return self.runs[key]

    def _trained(self, made: runner.Run) -> dict[str, float]:
        problem, settings, started = made.problem, made.settings, time.perf_counter()
        state = initial_state(problem.initial(), settings)
        try:
            for record, state in run(problem, made.scheme, settings, state, self.rounds):
                if not record.loss < LOST:
                    break
        except ValueError:
            pass
        if state.round < self.rounds:
            return {"accuracy": 0.1, "others": 0.1, "lost_in_round": state.round}
        found = {"accuracy": problem.evaluate(state.weights)[0]}
        if self.others is not None:
            found["others"] = replace(problem, dataset=self.others).evaluate(state.weights)[0]
        return found | {"seconds": round(time.perf_counter() - started, 1)}

    def best(self, arm: str, epsilon: float, start: float, judge: str) -> dict[str, float]:
        """The best run of the grid, found by climbing from ``start`` until both neighbours are worse."""
        at = min(range(len(GRID)), key=lambda i: abs(math.log(GRID[i] / start)))
        tried: dict[int, dict[str, float]] = {}
        while True:
            for i in (at, at - 1, at + 1):
                if i not in tried and 0 <= i < len(GRID):
                    tried[i] = self.result(arm, epsilon, GRID[i])
            best = max(tried, key=lambda i: tried[i][judge])
            if best == at:
                return tried[best]
            at = best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[400.0, 100.0, 40.0])
    parser.add_argument("--schemes", nargs="+", default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--starts", type=json.loads, default={})
    given = parser.parse_args()
    table = Table(given.out, given.rounds, other_digits(given.data_dir) if given.data_dir else None)
    for epsilon in given.epsilons:
        for arm in given.schemes:
            start = given.starts.get(arm, {}).get(str(int(epsilon)), 0.1)
            print(
                "best",
                arm,
                epsilon,
                table.best(arm, epsilon, start, "others" if given.data_dir else "accuracy"),
                flush=True,
            )


if __name__ == "__main__":
    main()
