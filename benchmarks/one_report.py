"""The choice of the settings in experiments/once-*.toml, on Fashion-MNIST's training images alone.

python benchmarks/one_report.py DIR

50,000 images are users, 10,000 are held out. Gaussian noise with PrivUnit's energy replaces the reports, so
that a run takes a second. Each line changes one setting; accuracies are means of three seeds at ε = 8, 4, 2.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from sqsgd.learning import features as hog
from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import extracted
from sqsgd.schemes.privunit import sphere_cap

USERS = 50_000
CHOSEN = {
    "width": 1.7,
    "common": 0.7,
    "noise": 1.4,
    "bound": 0.5,
    "rounds": 40,
    "momentum": 0.0,
    "mean": False,
}
OTHERS = {
    "width": (1.2, 2.2), "common": (1.0, 0.5), "noise": (1.0, 2.0), "bound": (0.25, 1.0),
    "rounds": (20, 160), "momentum": (0.9,), "mean": (True,),
}  # fmt: skip
Rows = npt.NDArray[np.float32]


def trained(
    rows: Rows,
    labels: npt.NDArray[np.int64],
    epsilon: float,
    seed: int,
    start: Rows | None = None,
    *,
    users: int = USERS,
    noise_of: int = 0,
    **chosen: float,
) -> float:
    """Held-out accuracy of a softmax that was trained on each user once, from ``start`` or from zero.

    The first ``users`` rows are users, with the noise of so many, or of ``noise_of`` if that is given.
    """
    numbers = np.random.default_rng(seed)
    weights, velocity, total = (
        np.zeros((rows.shape[1], int(labels.max()) + 1), np.float32) for _ in range(3)
    )
    weights = weights if start is None else start
    rounds, bound, momentum = int(chosen["rounds"]), chosen["bound"], chosen["momentum"]
    energy = 1 + sphere_cap(weights.size, epsilon).error
    noise_of = noise_of or users
    travel = chosen["noise"] * np.sqrt(3 * noise_of * weights.size / energy) / bound
    rate = min(200.0, travel / rounds) * (1 - momentum)
    cohorts = np.array_split(numbers.permutation(users), rounds)
    for round, cohort in enumerate(cohorts):
        scores = rows[cohort] @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(cohort)), labels[cohort]] -= 1
        lengths = np.linalg.norm(chances, axis=1, keepdims=True)  # of the gradients: rows have unit length
        chances *= np.minimum(1, bound / np.maximum(lengths, 1e-9))
        deviation = bound * np.sqrt(energy / weights.size / (len(cohort) * noise_of / users))
        mean = rows[cohort].T @ chances / len(cohort) + deviation * numbers.standard_normal(weights.shape)
        velocity = momentum * velocity + mean.astype(np.float32)
        weights = weights - np.float32(rate * (1 - round / rounds)) * velocity
        total = total + weights if round >= rounds // 2 else total
    judged = total if chosen["mean"] else weights
    return float(((rows[users:] @ judged).argmax(axis=1) == labels[users:]).mean())


def main(folder: str) -> None:
    """Print the table."""
    whole = load_dataset("fashion-mnist", folder)
    order = np.random.default_rng(5).permutation(len(whole.train_labels))
    labels, features = whole.train_labels.numpy()[order], {}
    for name, values in {"chosen": (None,), **OTHERS}.items():
        for value in values:
            setting = CHOSEN if name == "chosen" else {**CHOSEN, name: value}
            hog.WIDTH, hog.COMMON = key = setting["width"], setting["common"]
            if key not in features:
                features[key] = extracted(whole, "soft-hog").train_inputs.numpy()[order]
            reached = [
                np.mean([trained(features[key], labels, epsilon, seed, **setting) for seed in range(3)])
                for epsilon in (8.0, 4.0, 2.0)
            ]
            label = name if value is None else f"{name} {value}"
            print(f"{label:14}", *(f"{accuracy:.2%}" for accuracy in reached), f"mean {np.mean(reached):.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
