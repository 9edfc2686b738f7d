"""Several reports per user: the choice of settings on held-out training images, and a trusted server.

python benchmarks/several_reports.py choose DIR [DATA]
python benchmarks/several_reports.py trusted DIR [DATA]

``choose``: 10,000 training images are held out, the others are users. Gaussian noise of the energy that the
reports of all users have replaces the reports, so that a run takes seconds. Means of three seeds.

``trusted``: central differential privacy at the level of a user, with a server that sees all gradients. Each
of 40 rounds adds Gaussian noise to the sum of the clipped gradients of all users. A user may be replaced by
another, as in the central guarantee of the reports, so that the sum changes by at most twice the bound;
dp-accounting gives the noise for (ε, 10⁻⁶). The rate is chosen on the held-out images, and then all training
images train: test accuracy for three seeds.

``DATA``: one of the data sets alone, such as cifar10. The texts of tools/text_files.py are used if they are
named: SQSGD_DATA=DIR PYTHONPATH=. python benchmarks/several_reports.py trusted DIR tools.text_files:kinds
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sqsgd import make_scheme
from sqsgd.learning.datasets import Dataset, load_dataset
from sqsgd.learning.features import extracted

HELD, DELTA = 10_000, 1e-6
IMAGES, TEXTS = ("mnist", "fashion-mnist", "cifar10"), "tools.text_files:kinds"
SAMPLE = 12_000  # users in a round of ``choose``: fewer than report, with the noise of all
BUDGETS = ((4.0, 16, 96), (3.0, 55, 110), (2.0, 200, 200))  # ε of a report, reports, rounds
CENTRAL = ((3.0, 132, 132),)  # with the near set for the central ε
CHOICES = (
    ("mnist", "soft-hog", BUDGETS),
    ("fashion-mnist", "soft-hog", BUDGETS),
    ("cifar10", "efficientnet-lite0", CENTRAL),
    ("cifar10", "efficientnet-lite0-256", CENTRAL),
)
NOISE_AND_BOUND = ((1.4, 0.5), (1.4, 0.25), (1.4, 0.12), (2.0, 0.25), (2.0, 0.12))
TRUSTED = (
    ("mnist", "soft-hog", 0.12, (0.139, 0.608, 1.56)),
    ("fashion-mnist", "soft-hog", 0.25, (0.608,)),
    ("mnist", "soft-hog:0.7+font-digits:0.7", 0.12, (0.3,)),
    ("cifar10", "efficientnet-lite0-256", 0.12, (0.993,)),
    (TEXTS, "sentences", 0.25, (0.133, 0.438)),
)
ROUNDS, RATES = 40, (200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0)
Rows = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of one deviation in each weight of each round's mean gradient."""

    bound: float
    rounds: int
    deviation: float

    def rate(self, travel: float) -> float:
        """The rate at which the noise of all rounds moves a class score by ``travel``."""
        return travel * math.sqrt(3 / self.rounds) / self.deviation


def trained(
    rows: Rows, labels: Labels, noise: Noise, rate: float, seed: int, *, sample: int, start: Rows | None
) -> Rows:
    """The weights after all rounds; ``sample`` random users are in each."""
    numbers = np.random.default_rng(seed)
    weights = np.zeros((rows.shape[1], labels.max() + 1), np.float32) if start is None else start
    for round in range(noise.rounds):
        users = numbers.choice(len(rows), sample, replace=False) if sample < len(rows) else slice(None)
        inputs, right = rows[users], labels[users]
        scores = inputs @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(right)), right] -= 1
        lengths = np.linalg.norm(chances, axis=1, keepdims=True)  # of the gradients: rows have unit length
        chances *= np.minimum(1, noise.bound / np.maximum(lengths, 1e-9))
        mean = inputs.T @ chances / len(right) + noise.deviation * numbers.standard_normal(weights.shape)
        weights = weights - np.float32(rate * (1 - round / noise.rounds)) * mean.astype(np.float32)
    return weights


def accuracy(rows: Rows, labels: Labels, weights: Rows) -> float:
    """The share of rows whose largest score is that of their label."""
    return float(((rows @ weights).argmax(axis=1) == labels).mean())


def loaded(name: str, features: str, folder: str) -> tuple[Dataset, Rows, Labels, Rows | None]:
    """The data, the shuffled training rows and labels, and the public start if there is one."""
    whole = extracted(load_dataset(name, folder), features)
    order = np.random.default_rng(5).permutation(len(whole.train_labels))
    start = None if whole.head is None else whole.head.T.numpy()
    return whole, whole.train_inputs.numpy()[order], whole.train_labels.numpy()[order], start


def choose(folder: str, only: str = "") -> None:
    """Held-out accuracy for each noise and bound."""
    for name, features, budgets in CHOICES:
        if only not in ("", name):
            continue
        _, rows, labels, start = loaded(name, features, folder)
        dim, users = 10 * rows.shape[1], len(rows) - HELD
        for epsilon, reports, rounds in budgets:
            near = {"nearest": "central"} if budgets is CENTRAL else {}
            energy = 1 + make_scheme("privunit-index", dim=dim, epsilon=epsilon, **near).nmse
            for travel, bound in NOISE_AND_BOUND:
                each = len(rows) * reports / rounds
                noise = Noise(bound, rounds, bound * math.sqrt(energy / dim / each))
                some = {"sample": min(SAMPLE, int(each)), "start": start}
                found = [
                    trained(rows[:users], labels[:users], noise, noise.rate(travel), seed, **some)
                    for seed in range(3)
                ]
                reached = np.mean([accuracy(rows[users:], labels[users:], weights) for weights in found])
                setting = f"{name} {features} {reports:3} x {epsilon:g} noise {travel} bound {bound:4}"
                print(f"{setting} rate {noise.rate(travel):5.0f} {reached:.2%}", flush=True)


def multiplier(epsilon: float) -> float:
    """Deviation over sensitivity of one release of all rounds together, by dp-accounting."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    return float(
        dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, dp_accounting.GaussianDpEvent, epsilon, DELTA, tol=1e-4
        )
    )


def trusted(folder: str, only: str = "") -> None:
    """Test accuracy of the trusted server."""
    for name, features, bound, budgets in TRUSTED:
        if name not in ((only,) if only else IMAGES):
            continue
        whole, rows, labels, start = loaded(name, features, folder)
        users = len(rows) - HELD
        tests = whole.test_inputs.numpy(), whole.test_labels.numpy()
        for epsilon in budgets:
            scale = multiplier(epsilon) * math.sqrt(ROUNDS) * 2 * bound / len(rows)
            noise = Noise(bound, ROUNDS, scale)
            some = rows[:users], labels[:users], noise
            held = [
                accuracy(rows[users:], labels[users:], trained(*some, rate, 0, sample=SAMPLE, start=start))
                for rate in RATES
            ]
            rate = RATES[int(np.argmax(held))]
            found = [
                accuracy(*tests, trained(rows, labels, noise, rate, seed, sample=len(rows), start=start))
                for seed in (1, 2, 3)
            ]
            reached = " ".join(f"{each:.2%}" for each in found)
            print(
                f"{name} {features} ε {epsilon:g} rate {rate:g}: {reached} mean {np.mean(found):.2%}",
                flush=True,
            )


if __name__ == "__main__":
    {"choose": choose, "trusted": trusted}[sys.argv[1]](*sys.argv[2:])
