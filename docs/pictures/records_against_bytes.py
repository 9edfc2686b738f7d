"""Draws docs/pictures/records-against-bytes.svg from two tables in docs/results/record-level.md.

python docs/pictures/records_against_bytes.py
"""

from __future__ import annotations

import re
from pathlib import Path

from drawing import BASELINE, OTHERS, OURS, axes_for, section

PICTURE = Path(__file__).with_name("records-against-bytes.svg")
TASK, FEWER = "## MNIST, softmax on soft HOG, (1, 10^-5) per record", "## Fewer bytes"
ROW = re.compile(r"^\| ([^|]+) \| ([\d., ]+) % \| ([\d,]+) \| ([^|]+) \|$", re.MULTILINE)
SIZE = re.compile(r"^\| [^|]+ \| [^|]+ \| ([\d,]+) \| ([\d., ]+) % \|$", re.MULTILINE)
PEERS = {
    "Opacus 1.6 at every silo, FedAvg each step": (
        "Opacus at every silo, FedAvg each step, mean of three seeds",
        OTHERS,
        "s",
    ),
    "no privacy (`fedsgd`, the same rate)": ("FedSGD without privacy, mean of three seeds", BASELINE, "D"),
}


def values(cells: str) -> list[float]:
    """The accuracies of all seeds in percent."""
    return [float(cell) for cell in cells.split(",")]


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "MNIST on soft-hog, ten silos, 200 rounds, (1, 10⁻⁵) per record"
    rows = [(values(found), int(size.replace(",", ""))) for size, found in SIZE.findall(section(FEWER))]
    with axes_for(path, height=4.2, x="bytes per silo and round (log scale)", title=title) as axes:
        seeds = "seed 0" if len(rows[0][0]) == 1 else "mean of three seeds"
        means = [sum(found) / len(found) for found, _ in rows]
        axes.plot(
            [size for _, size in rows], means, "o-", color=OURS, markersize=8, label=f"sqsgd-record, {seeds}"
        )
        for (found, size), mean in zip(rows, means, strict=True):
            axes.plot([size] * len(found), found, "_", color=OURS, markersize=9)
            text = {"textcoords": "offset points", "color": OURS, "fontsize": 9, "ha": "center"}
            axes.annotate(f"{mean:.2f} %\n{size:,} B", (size, mean), xytext=(0, -34), **text)
        for name, found, size, _ in ROW.findall(section(TASK)):
            if name not in PEERS:
                continue
            label, colour, mark = PEERS[name]
            mean = sum(values(found)) / len(values(found))
            axes.plot(int(size.replace(",", "")), mean, mark, color=colour, markersize=8, label=label)
        axes.set_xscale("log")
        axes.set_xlim(50, 4e4)
        axes.set_ylim(95.2, 98.6)
        axes.legend(frameon=False, loc="lower right")


if __name__ == "__main__":
    draw()
