"""Draws docs/pictures/accuracy-against-users.svg from the table in docs/results; nothing is trained.

python docs/pictures/accuracy_against_users.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from drawing import LIGHT, axes_for, by_error, section

PICTURE = Path(__file__).with_name("accuracy-against-users.svg")
HEADING = "## How many users"
TICKS = (60, 70, 80, 90, 94, 96, 97, 98)
ENDS = {8: 3, 4: -4, 2: -1, 1: -12}  # heights of the last labels, which are close to each other
ROW = re.compile(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) %[ ±\d.]* \| (\d+) \|", re.MULTILINE)


@dataclass(frozen=True)
class Point:
    """One setting: users, the total ε of each, its central one, accuracy in percent, number of runs."""

    users: int
    epsilon: int
    central: float
    accuracy: float
    seeds: int


def points() -> list[Point]:
    """The rows of the table."""
    return [
        Point(int(users.replace(",", "")), int(epsilon), float(central), float(accuracy), int(seeds))
        for users, epsilon, central, accuracy, seeds in ROW.findall(section(HEADING))
    ]


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "MNIST, one report of 7 bytes per user; next to the points: central ε at δ = 10⁻⁶\n"
    title += "filled: means of three runs, hollow: single runs"
    with axes_for(path, height=4.8, x="users (log scale)", title=title) as axes:
        for epsilon, colour in zip((8, 4, 2, 1), LIGHT.series, strict=False):
            line = [point for point in points() if point.epsilon == epsilon]
            users, heights = [point.users for point in line], [point.accuracy for point in line]
            axes.plot(users, heights, "-", color=colour)
            for kind, chosen in (
                ("o", [p for p in line if p.seeds > 1]),
                ("D", [p for p in line if p.seeds == 1]),
            ):
                axes.plot(
                    [p.users for p in chosen], [p.accuracy for p in chosen], kind, color=colour,
                    markerfacecolor=colour if kind == "o" else LIGHT.surface,
                    label=f"total ε = {epsilon}" if kind == "o" else None,
                )  # fmt: skip
            for point in line:
                drop = ENDS[epsilon] if point is line[-1] else 5 if epsilon == 8 else -11
                axes.annotate(
                    f"{point.central:g}", (point.users, point.accuracy),
                    xytext=(7, drop), textcoords="offset points", color=colour, fontsize=9,
                )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(4e4, 2.5e7)
        by_error(axes, TICKS)
        axes.set_ylim(60, 98.5)
        axes.legend(frameon=False, loc="lower right")


if __name__ == "__main__":
    draw()
