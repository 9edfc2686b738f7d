"""Draws docs/pictures/accuracy-against-bytes.svg from the table in docs/results; nothing is trained.

python docs/pictures/accuracy_against_bytes.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from drawing import BASELINE, OTHERS, OURS, axes_for, section

PICTURE = Path(__file__).with_name("accuracy-against-bytes.svg")
HEADING = "## All private schemes at the same budget"
ROW = re.compile(r"^\| ([^|]+) \| ([\d.]+) ± ([\d.]+) % \| [^|]+ \| ([\d,]+) \|$", re.MULTILINE)
# The label of a mark, and its offset in points: the schemes at 273 bytes share two lines.
LABELS = {
    "sqsgd": ("sqsgd", (-10, 6)),
    "sqsgd, signs": ("sqsgd with signs", (12, 5)),
    "fedsel": ("fedsel", (-9, 0)),
    "sqsgd-stateless": ("sqsgd-stateless", (-10, -6)),
    "privunit": ("privunit, privunit-g, privunit-inf", (12, -3)),
    "privunit-g": ("", (9, 0)),
    "privunit-inf": ("", (9, 0)),
    "sqkr": ("sqkr", (-8, -12)),
    "sqsgd-paper, K = 16, adaptive": ("sqsgd-paper, adaptive", (9, -2)),
    "sqsgd-paper, K = 16, fixed U = 10": ("sqsgd-paper, fixed range", (9, -2)),
    "FedSGD, not private": ("FedSGD, not private", (-10, 6)),
    "ldp-fed": ("ldp-fed", (-8, -4)),
    "ldp-fl": ("ldp-fl", (-8, 4)),
    "vqsgd": ("vqsgd", (9, -2)),
    "piecewise": ("piecewise", (4, -8)),
}


@dataclass(frozen=True)
class Point:
    """One scheme: accuracy and half the width of its interval in percent, bytes of a whole message."""

    name: str
    accuracy: float
    half_width: float
    bytes: int


def points() -> list[Point]:
    """The rows of the table."""
    return [
        Point(name.replace("`", ""), float(accuracy), float(half), int(size.replace(",", "")))
        for name, accuracy, half, size in ROW.findall(section(HEADING).split("\n### ")[0])
    ]


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "LeNet-5 on MNIST, ε = 400 per round, 10 clients, 564 rounds, 3 seeds"
    with axes_for(path, height=4.6, x="uplink bytes per client and round (log scale)", title=title) as axes:
        for point in points():
            ours, clear = point.name in ("sqsgd", "sqsgd-stateless"), "not private" in point.name
            colour = OURS if ours else BASELINE if clear else OTHERS
            axes.errorbar(
                point.bytes, point.accuracy, yerr=point.half_width, fmt="o", color=colour,
                markersize=9 if ours else 6, elinewidth=1, capsize=2, alpha=1.0 if ours or clear else 0.75,
            )  # fmt: skip
            label, at = LABELS.get(point.name, (point.name, (9, -2)))
            axes.annotate(
                label, (point.bytes, point.accuracy), xytext=at, textcoords="offset points", color=colour,
                fontsize=9, fontweight="bold" if ours else "normal", va="center",
                ha="right" if at[0] < 0 else "left",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(10, 3e6)
        axes.set_ylim(86, 100.2)


if __name__ == "__main__":
    draw()
