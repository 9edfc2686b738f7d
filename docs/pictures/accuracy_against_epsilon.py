"""Draws docs/pictures/accuracy-against-epsilon.svg from the tables in docs/results; nothing is trained.

python docs/pictures/accuracy_against_epsilon.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from drawing import LIGHT, OTHERS, OURS, axes_for, section

PICTURE = Path(__file__).with_name("accuracy-against-epsilon.svg")
HEADING = "## Formula features"
PRETRAINED, PRETRAINED_HEADING, WEIGHTS = "MNIST, public pretraining", "## Public pretraining: digits from rendered fonts", 4560
ROW = re.compile(
    r"^\| (MNIST|Fashion-MNIST) \| (\d+) \| ([\d.]+) \| .* \| \*\*([\d.]+) %\*\*[ ±\d.]* \| (\d+) \|$",
    re.MULTILINE,
)
PRETRAINED_ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| .* \| \*\*([\d.]+) %\*\*[ ±\d.]* \|", re.MULTILINE)
COLOURS = {PRETRAINED: LIGHT.series[1], "MNIST": OURS, "Fashion-MNIST": OTHERS}


@dataclass(frozen=True)
class Point:
    """One setting: data, a user's total ε, its central one, accuracy in percent, bytes that a user sends."""

    dataset: str
    epsilon: float
    central: float
    accuracy: float
    bytes: int
    weights: int = 3920


def points() -> list[Point]:
    """The rows of the tables; all messages have the same length."""
    found = [
        Point(name, float(epsilon), float(central), float(accuracy), int(size))
        for name, epsilon, central, accuracy, size in ROW.findall(section(HEADING))
    ]
    table = section(PRETRAINED_HEADING).partition("A million users")[0]
    found += [
        Point(PRETRAINED, float(epsilon), float(central), float(accuracy), found[0].bytes, WEIGHTS)
        for epsilon, central, accuracy in PRETRAINED_ROW.findall(table)
    ]
    return found


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "60,000 users, one report of 7 bytes each; beside the points: central ε at δ = 10⁻⁶"
    with axes_for(path, height=4.6, x="total ε of a user, against everyone", title=title) as axes:
        for name, colour in COLOURS.items():
            line = sorted(
                (point for point in points() if point.dataset == name), key=lambda each: each.epsilon
            )
            budgets, heights = [point.epsilon for point in line], [point.accuracy for point in line]
            axes.plot(budgets, heights, "o-", color=colour, label=name)
            for point in line:
                axes.annotate(
                    f"{point.accuracy:.1f} %, central {point.central:g}", (point.epsilon, point.accuracy),
                    xytext=(8, 6 if name == PRETRAINED else -12), textcoords="offset points",
                    color=colour, fontsize=9,
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.set_xlim(0.8, 15)
        axes.set_ylim(60, 101)
        axes.legend(frameon=False, loc="lower right")


if __name__ == "__main__":
    draw()
