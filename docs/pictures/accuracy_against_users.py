"""Draws docs/pictures/accuracy-against-users.svg from the table in docs/results; nothing is trained.

python docs/pictures/accuracy_against_users.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from drawing import LIGHT, axes_for, section

PICTURE = Path(__file__).with_name("accuracy-against-users.svg")
HEADING = "## How many users"
TICKS = (60, 70, 80, 90, 94, 96, 97, 98)
ENDS = {8: 3, 4: -4, 2: -1, 1: -12}  # heights of the last labels, which are close to each other
ROW = re.compile(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) %", re.MULTILINE)


@dataclass(frozen=True)
class Point:
    """One setting: users, the total ε of each, its central one, accuracy in percent."""

    users: int
    epsilon: int
    central: float
    accuracy: float


def points() -> list[Point]:
    """The rows of the table."""
    return [
        Point(int(users.replace(",", "")), int(epsilon), float(central), float(accuracy))
        for users, epsilon, central, accuracy in ROW.findall(section(HEADING))
    ]


def _stretched(accuracy):
    """Heights by the logarithm of the error, so that lines that end near 100 % stay apart."""
    return -np.log(np.maximum(100.5 - accuracy, 1e-3))


def _squeezed(height):
    return 100.5 - np.exp(-height)


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "MNIST, one image and one report of 7 bytes a user; beside the points: central ε at δ = 10⁻⁶"
    with axes_for(path, height=4.6, x="users", title=title) as axes:
        for epsilon, colour in zip((8, 4, 2, 1), LIGHT.series, strict=False):
            line = [point for point in points() if point.epsilon == epsilon]
            users, heights = [point.users for point in line], [point.accuracy for point in line]
            axes.plot(users, heights, "o-", color=colour, label=f"total ε = {epsilon}")
            for point in line:
                drop = ENDS[epsilon] if point is line[-1] else -11
                axes.annotate(
                    f"{point.central:g}", (point.users, point.accuracy),
                    xytext=(7, drop), textcoords="offset points", color=colour, fontsize=9,
                )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(4e4, 2.5e7)
        axes.set_yscale("function", functions=(_stretched, _squeezed))
        axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
        axes.set_ylim(60, 98.5)
        axes.legend(frameon=False, loc="lower right")


if __name__ == "__main__":
    draw()
