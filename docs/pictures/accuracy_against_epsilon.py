"""Draws docs/pictures/accuracy-against-epsilon.svg from the tables in docs/results; nothing is trained.

python docs/pictures/accuracy_against_epsilon.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from drawing import LIGHT, OTHERS, OURS, axes_for, by_error, section

PICTURE = Path(__file__).with_name("accuracy-against-epsilon.svg")
HEADING = "## Formula features"
PRETRAINED, PRETRAINED_HEADING, WEIGHTS = (
    "MNIST, public pretraining",
    "## Public pretraining: digits from rendered fonts",
    4560,
)
ROW = re.compile(
    r"^\| (MNIST|Fashion-MNIST) \| (\d+) \| ([\d.]+) \| .* \| \*\*([\d.]+) %\*\* ± ([\d.]+) \| (\d+) \|$",
    re.MULTILINE,
)
PRETRAINED_ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| .* \| \*\*([\d.]+) %\*\* ± ([\d.]+) \|", re.MULTILINE)
LINES = (
    (PRETRAINED, r"recogni[sz]es\s+([\d.]+)\s+% of", "before any report"),
    (PRETRAINED, r"same\s+40\s+rounds\s+achieve\s+([\d.]+)\s+%", "without privacy"),
    ("MNIST", r"not private \(`--scheme fedsgd --bytes 15680`\) \| ([\d.]+)", "without privacy"),
)
"""Accuracies that need no report, or no privacy: the data, where the page has them, and their names."""
COLOURS = {PRETRAINED: LIGHT.series[1], "MNIST": OURS, "Fashion-MNIST": OTHERS}


@dataclass(frozen=True)
class Point:
    """One setting: data, a user's total ε, its central one, accuracy ± half its interval, bytes."""

    dataset: str
    epsilon: float
    central: float
    accuracy: float
    half_width: float
    bytes: int
    weights: int = 3920


def points() -> list[Point]:
    """The rows of the tables; all messages have the same length."""
    found = [
        Point(name, float(epsilon), float(central), float(accuracy), float(half), int(size))
        for name, epsilon, central, accuracy, half, size in ROW.findall(section(HEADING))
    ]
    table = section(PRETRAINED_HEADING).partition("A million users")[0]
    found += [
        Point(
            PRETRAINED, float(epsilon), float(central), float(accuracy), float(half), found[0].bytes, WEIGHTS
        )
        for epsilon, central, accuracy, half in PRETRAINED_ROW.findall(table)
    ]
    return found


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "60,000 users, one report of 7 bytes each; mean of three seeds, 95 % intervals"
    x = "total ε of a user, against everyone\n"
    x += "(in brackets: central ε at δ = 10⁻⁶, against readers of the models)"
    page = section(HEADING) + section(PRETRAINED_HEADING)
    with axes_for(path, height=5.4, x=x, title=title) as axes:
        for name, colour in COLOURS.items():
            line = sorted(
                (point for point in points() if point.dataset == name), key=lambda each: each.epsilon
            )
            axes.errorbar(
                [point.epsilon for point in line], [point.accuracy for point in line],
                yerr=[point.half_width for point in line], fmt="o-", capsize=3, color=colour,
            )  # fmt: skip
            for point in line:
                axes.annotate(
                    f"{point.accuracy + 1e-9:.1f}", (point.epsilon, point.accuracy), xytext=(7, -12),
                    textcoords="offset points", color=colour, fontsize=9,
                )  # fmt: skip
            axes.annotate(name, (8.9, line[-1].accuracy), color=colour, fontweight="bold", va="center")
        for name, pattern, words in LINES:
            accuracy, colour = float(re.findall(pattern, page)[0]), COLOURS[name]
            axes.axhline(accuracy, xmax=0.71, color=colour, linewidth=1, linestyle=(0, (4, 3)))
            start = words.startswith("before")
            axes.annotate(
                f"{words}: {accuracy:.1f}", (2.3 if start else 8.9, accuracy), color=colour, fontsize=9,
                xytext=(0, 7 if start else 0), textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        central = {point.epsilon: point.central for point in points() if point.dataset == "MNIST"}
        axes.set_xticks([1, 2, 4, 8], [f"{tick:g}\n({central[tick]:g})" for tick in (1, 2, 4, 8)])
        axes.set_xlim(0.8, 22)
        by_error(axes, (60, 70, 80, 90, 94, 96, 97, 98, 99))
        axes.set_ylim(56, 99.4)


if __name__ == "__main__":
    draw()
