"""What lying clients do to a model, and what robust aggregates do about it.

    python benchmarks/lying_clients.py                        # ten clients that report in every round
    python benchmarks/lying_clients.py --once --data-dir DIR  # 60,000 users of MNIST that report once

Liars encode with the real scheme, as anything else would be rejected, whatever they like in place of their
gradient. The wire format bounds how far a report can move the mean, so they choose vectors far beyond the
bound:

* reversed: a hundred times their own gradient, with the opposite sign;
* together: all of them the same, a hundred times the gradient towards "every image is a zero".
"""

import argparse
import dataclasses
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np

from sqsgd.training.train import load_problem, prepare
from sqsgd.experiments.settings import make_settings
from sqsgd.training import initial_state
from sqsgd.federated import one_round
from sqsgd.federated.robust import AGGREGATES, check_aggregate
from sqsgd.training.settings import RunConfig, load_config

ATTACKS, LIARS, STRENGTH = ("reversed", "together"), (0, 1, 2, 3), np.float32(100.0)
ONCE = Path(__file__).parents[1] / "experiments/once-mnist.toml"
HOG = {"model": "soft-hog-linear"}
SETTINGS = {
    "LeNet-5, epsilon 400, 256 bytes": {},
    "softmax on HOG, epsilon 400, 256 bytes": HOG,
    "softmax on HOG, signs, epsilon 400, 256 bytes": {**HOG, "options": {"code": "signs"}},
}


class Lied:
    """A problem whose liars compute something else."""

    def __init__(self, problem, attack, liars):
        self._honest, self._attack, self.liars = problem, attack, liars
        data = problem.dataset
        zeros = dataclasses.replace(data, train_labels=data.train_labels * 0)
        self._zeros = dataclasses.replace(problem, dataset=zeros)

    def __getattr__(self, name):
        return getattr(self._honest, name)

    def gradients(self, weights, round, cohort):
        honest = self._honest.gradients(weights, round, cohort)
        for user, (loss, gradient) in zip(cohort, honest, strict=True):
            if user not in self.liars:
                yield loss, gradient
            elif self._attack == "reversed":
                yield loss, -STRENGTH * gradient
            else:  # the same for all: that of the first liar
                yield loss, STRENGTH * next(self._zeros.gradients(weights, round, [min(self.liars)]))[1]

    def gradient_rows(self, weights, round, cohort):
        losses, rows = self._honest.gradient_rows(weights, round, cohort)
        lying = np.isin(cohort, list(self.liars))
        if self._attack == "reversed":
            rows[lying] *= -STRENGTH
        elif lying.any():
            wanted = self._zeros.gradient_rows(weights, round, cohort)[1].mean(axis=0)
            rows[lying] = STRENGTH * wanted
        return losses, rows


def trained(run_, aggregate, attack, liars, seed):
    """The accuracy after training with so many liars."""
    config = dataclasses.replace(run_.config, seed=seed)
    settings = dataclasses.replace(make_settings(config, run_.scheme), aggregate=aggregate)
    random = np.random.default_rng(seed)
    chosen = frozenset(random.permutation(run_.problem.clients)[:liars].tolist())
    honest = run_.problem if config.once else load_problem(config)  # the users' order depends on the seed
    problem = Lied(honest, attack, chosen)
    state = initial_state(problem.initial(), settings)
    while state.round < config.rounds:
        _, state = one_round(problem, run_.scheme, settings, state)
    return problem.evaluate(state.weights)[0]


def table(name, config, seeds, shares, aggregates):
    """Print the accuracies of one setting."""
    with tempfile.TemporaryDirectory() as folder:
        made = prepare(config, Path(folder) / "run")
    reports = config.participants or config.clients
    kinds = "; ".join(made.scheme.identity.splitlines()[1:])
    print(f"\n{name}: {kinds}; NMSE {made.scheme.nmse:.1f}, {reports} reports a round")
    print(f"{'aggregate':17} {'attack':9}", *(f"{share:>20}" for share in shares))
    for aggregate, attack in itertools.product(aggregates, ATTACKS):
        try:
            check_aggregate(aggregate, made.scheme, reports)
        except ValueError as error:
            if attack == ATTACKS[0]:
                print(f"{aggregate:17} refused: {error}")
            continue
        cells = []
        for share in shares:
            if not share and attack != ATTACKS[0]:
                cells.append(f"{'':20}")
                continue
            liars = round(share * config.clients) if config.once else share
            found = [100 * trained(made, aggregate, attack, liars, seed) for seed in seeds]
            cells.append(f"{np.mean(found):6.1f} ({min(found):5.1f}-{max(found):5.1f})")
        print(f"{aggregate:17} {attack:9}", *cells)
        sys.stdout.flush()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a setting")
    parser.add_argument("--aggregate", action="append", choices=AGGREGATES, help="all, unless given")
    chosen = parser.parse_args()
    seeds, aggregates = range(chosen.seeds), chosen.aggregate or AGGREGATES
    if chosen.once:
        config = dataclasses.replace(load_config(ONCE), data_dir=chosen.data_dir)
        table("one report per user, epsilon 8", config, seeds, (0.0, 0.05, 0.1, 0.2, 0.3), aggregates)
        return
    for name, values in SETTINGS.items():
        if chosen.only in name:
            config = RunConfig(rounds=chosen.rounds, workers=1, **values)
            table(name, config, seeds, LIARS, aggregates)


if __name__ == "__main__":
    main()
