"""Draws docs/pictures/records-against-bytes.svg from the tables in docs/results/record-level.md.

python docs/pictures/records_against_bytes.py
"""

from __future__ import annotations

import re
from pathlib import Path

from drawing import BASELINE, LIGHT, OURS, axes_for, section

PICTURE = Path(__file__).with_name("records-against-bytes.svg")
TASK, FEWER = "## MNIST, softmax on soft HOG, (1, 10^-5) per record", "## Fewer bytes"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| ([\d,]+) \| ([\d., ]+) %[^|]*\|$", re.MULTILINE)
OTHER = re.compile(r"^\| (Opacus 1.6 at every silo, FedAvg each step|no privacy) [^|]*\| ([\d., ]+) % \| ([\d,]+) \|", re.MULTILINE)
LABELS = {"no privacy": "FedSGD, not private", "Opacus": "Opacus at every silo, FedAvg each step"}


def mean(cells: str) -> float:
    """Of accuracies in percent, separated by commas."""
    numbers = [float(cell) for cell in cells.split(",")]
    return sum(numbers) / len(numbers)
