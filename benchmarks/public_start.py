"""The choice of the settings in experiments/once-font-digits.toml, on MNIST's training images alone.

python benchmarks/public_start.py DIR

50,000 images are users, 10,000 are held out, as in benchmarks/one_report.py. Each line changes one setting;
accuracies are means of two seeds at ε = 8, 4, 2, 1.
"""

from __future__ import annotations

import sys

import numpy as np
from one_report import CHOSEN, USERS, trained

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import extracted

STARTED = {**CHOSEN, "noise": 0.7, "bound": 0.25}
LINES = {
    "chosen": ("soft-hog:0.7+font-digits:0.7", STARTED),
    "soft-hog:0.5+font-digits:0.87": ("soft-hog:0.5+font-digits:0.87", STARTED),
    "font-digits": ("font-digits", STARTED),
    "noise 0.5": ("soft-hog:0.7+font-digits:0.7", {**STARTED, "noise": 0.5}),
    "noise 1.0": ("soft-hog:0.7+font-digits:0.7", {**STARTED, "noise": 1.0}),
    "bound 0.12": ("soft-hog:0.7+font-digits:0.7", {**STARTED, "bound": 0.12}),
    "bound 0.5": ("soft-hog:0.7+font-digits:0.7", {**STARTED, "bound": 0.5}),
    "from zero, noise 1.4, bound 0.5": ("soft-hog:0.7+font-digits:0.7", CHOSEN),
}


def main(folder: str) -> None:
    """Print the table."""
    whole = load_dataset("mnist", folder)
    order = np.random.default_rng(5).permutation(len(whole.train_labels))
    labels, features = whole.train_labels.numpy()[order], {}
    for label, (name, setting) in LINES.items():
        if name not in features:
            found = extracted(whole, name)
            head = np.zeros(0) if found.head is None else found.head.T.numpy()
            features[name] = found.train_inputs.numpy()[order], head
        rows, head = features[name]
        if label == "chosen":
            known = ((rows[USERS:] @ head).argmax(axis=1) == labels[USERS:]).mean()
            print(f"{'no user at all':34} {known:.2%}")
        start = None if setting is CHOSEN else head
        reached = [
            np.mean([trained(rows, labels, epsilon, seed, start, **setting) for seed in range(2)])
            for epsilon in (8.0, 4.0, 2.0, 1.0)
        ]
        print(f"{label:34}", *(f"{accuracy:.2%}" for accuracy in reached), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
