"""The default learning rate of every scheme against the best of a grid: LeNet-5 on the embedded digits.

`.venv/bin/python benchmarks/default_rates.py rates.json [--epsilons 400 100 40] [--schemes vqsgd piecewise]
[--seeds 1 2 3]` trains each scheme at its default and at rates of a grid, from the one next to the default
on, until both neighbours of the best are worse; then it prints the table of means. Every run is stored as it
ends, and none is repeated. Without `--seeds`, a default is compared over the seeds that are stored for it, or
seed 1. With `--data-dir`, runs are also measured on images of MNIST's training set that
are not among the embedded digits: constants of the rule are chosen on those.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

from sqsgd._internal.files import write_atomically
from sqsgd.learning.datasets import Dataset, load_dataset
from sqsgd.runs import train as runner
from sqsgd.schemes import SCHEMES
from sqsgd.training import initial_state, run
from sqsgd.training.settings import RunConfig

GRID = tuple(round(step * 10.0**power, 6) for power in range(-5, 3) for step in (1, 3))
ARMS = {name: RunConfig(epsilon=400.0, scheme=name) for name in SCHEMES} | {
    "sqsgd-paper adaptive": RunConfig(epsilon=400.0, scheme="sqsgd-paper", options={"adaptive": True})
}
LENET = 119_850
LOST = 1e3
"""A mean loss at which a run is given up: it has diverged, and guesses."""

Result = dict[str, float]


def other_digits(data_dir: Path, count: int = 5000) -> Dataset:
    """Images of MNIST's training set that are not embedded, in the place of the test images."""
    embedded, mnist = load_dataset("mnist5k"), load_dataset("mnist", data_dir)
    parts = (embedded.train_inputs, embedded.test_inputs)
    known = {image.numpy().tobytes() for part in parts for image in part}
    new = [i for i, image in enumerate(mnist.train_inputs) if image.numpy().tobytes() not in known][:count]
    return replace(mnist, test_inputs=mnist.train_inputs[new], test_labels=mnist.train_labels[new])


class Runs:
    """Finished runs in a file, by scheme, budget, rate and seed; makes those that are missing."""

    def __init__(self, path: Path, rounds: int, others: Dataset | None, seeds: Sequence[int] = ()) -> None:
        self.path, self.rounds, self.others, self.seeds = path, rounds, others, seeds
        self.done: dict[str, Result] = json.loads(path.read_text()) if path.exists() else {}

    def result(self, arm: str, epsilon: float, lr: float = 0.0) -> Result:
        """The mean over the seeds, at this rate, which falls linearly to zero, or at the default."""
        found = [self._run(arm, epsilon, lr, seed) for seed in self.seeds or self._stored(arm, epsilon)]
        measured = [name for name in ("rate", "accuracy", "others") if all(name in each for each in found)]
        return {name: fmean(each[name] for each in found) for name in measured} | {
            "learns": not runner.outlook(self._config(arm, epsilon), dim=LENET),
            "private": self._by_default(arm, epsilon)[1],
            "runs": len(found),
        }

    def _stored(self, arm: str, epsilon: float) -> Sequence[int]:
        """The seeds of the stored runs at the default rate; 1 if there is none."""
        start = self._key(arm, epsilon)
        return sorted(int(key.removeprefix(start)) for key in self.done if key.startswith(start)) or [1]

    def _key(self, arm: str, epsilon: float, lr: float = 0.0) -> str:
        rate, private = self._by_default(arm, epsilon)
        return f"{arm} | {epsilon if private else math.inf:g} | {lr or rate:.4g} | "

    @cache  # noqa: B019
    def _by_default(self, arm: str, epsilon: float) -> tuple[float, bool]:
        """The default rate, and whether a guarantee holds."""
        made = runner.prepare(self._config(arm, epsilon), Path("a folder that is never made"))
        return made.settings.lr, made.scheme.privacy.is_private

    def _config(self, arm: str, epsilon: float, lr: float = 0.0, seed: int = 0) -> RunConfig:
        return replace(ARMS[arm], epsilon=epsilon, rounds=self.rounds, lr=lr, seed=seed, workers=1)

    def _run(self, arm: str, epsilon: float, lr: float, seed: int) -> Result:
        key = f"{self._key(arm, epsilon, lr)}{seed}"
        if key not in self.done:
            made = runner.prepare(self._config(arm, epsilon, lr, seed), Path("a folder that is never made"))
            self.done[key] = {"rate": made.settings.lr, **self._trained(made)}
            write_atomically(self.path, json.dumps(self.done, indent=1).encode())
            print(key, self.done[key], flush=True)
        return self.done[key]

    def _trained(self, made: runner.Run) -> Result:
        problem, started = made.problem, time.perf_counter()
        state = initial_state(problem.initial(), made.settings)
        try:
            for record, after in run(problem, made.scheme, made.settings, state, self.rounds):
                state = after
                if not record.loss < LOST:
                    break
        except ValueError:  # weights beyond any range
            pass
        if state.round < self.rounds:
            return {"accuracy": 0.1, "others": 0.1, "lost_in_round": state.round}
        found = {"accuracy": problem.evaluate(state.weights)[0]}
        if self.others is not None:
            found["others"] = replace(problem, dataset=self.others).evaluate(state.weights)[0]
        return found | {"seconds": round(time.perf_counter() - started, 1)}

    def best(self, arm: str, epsilon: float) -> Result:
        """The best run of the grid, found by climbing from the default until both neighbours are worse."""
        start = self.result(arm, epsilon)["rate"]
        at, tried = min(range(len(GRID)), key=lambda i: abs(math.log(GRID[i] / start))), dict[int, Result]()
        while True:
            for i in range(max(at - 1, 0), min(at + 2, len(GRID))):
                tried[i] = self.result(arm, epsilon, GRID[i])
            best = max(tried, key=lambda i: tried[i]["accuracy"])
            if best == at:
                return tried[best]
            at = best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[400.0, 100.0, 40.0])
    parser.add_argument("--schemes", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    others = other_digits(given.data_dir) if given.data_dir else None
    runs = Runs(given.out, given.rounds, others, given.seeds)
    rows = {}
    for epsilon in given.epsilons:
        for arm in given.schemes:
            default, best = runs.result(arm, epsilon), runs.best(arm, epsilon)
            silent = "" if default["learns"] else ", says that little or nothing will be learned"
            difference = 100 * (default["accuracy"] - best["accuracy"])
            shown = [f"{each['rate']:.3g} | {each['accuracy']:.1%}" for each in (default, best)]
            budget = f"{epsilon:g}" if default["private"] else "none"
            rows[arm, budget] = f"{' | '.join(shown)} | {difference:+.1f}{silent} | {default['runs']:.0f}"
    print("| scheme | ε | default rate | accuracy | best of the grid | accuracy | difference | runs |")
    print("|---" * 8 + "|")
    for (arm, budget), row in rows.items():
        print(f"| `{arm}` | {budget} | {row} |")


if __name__ == "__main__":
    main()
