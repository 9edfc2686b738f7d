"""Draws docs/pictures/accuracy-against-central.svg from the tables in docs/results; nothing is trained.

python docs/pictures/accuracy_against_central.py
"""

from __future__ import annotations

import re
from pathlib import Path

from drawing import BASELINE, LIGHT, axes_for, by_error, section

PICTURE = Path(__file__).with_name("accuracy-against-central.svg")
TRUSTED, SEVERAL, ONCE = "## A trusted server", "## Several reports, one central epsilon", "## Fixed features"
ROW = re.compile(r"^\| MNIST, soft-hog \|.*\| ([\d.]+) \|[^*]*\*\*([\d.]+) %\*\*", re.MULTILINE)
TICKS = (75, 80, 85, 90, 93, 95, 96, 97, 98)
GIRGIS = (5.0, 76.7)  # Girgis et al. 2021, 60,000 users with 80 reports each


def points(heading: str) -> list[tuple[float, float]]:
    """Central ε and accuracy of MNIST in the first table below a heading, by rising ε."""
    return sorted((float(central), float(reached)) for central, reached in ROW.findall(section(heading)))


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "MNIST, 60,000 users, fixed features, δ = 10⁻⁶: means of three runs"
    curves = (
        (points(TRUSTED), "a server that sees all gradients", LIGHT.series[1], "s--"),
        (points(SEVERAL), "reports with local noise, one or several per user", LIGHT.series[2], "o-"),
    )
    with axes_for(path, height=4.8, x="central ε (log scale)", title=title) as axes:
        for found, label, colour, style in curves:
            axes.plot(*zip(*found, strict=True), style, color=colour, label=label)
            for central, reached in found:
                axes.annotate(
                    f"{reached:.1f} %", (central, reached), xytext=(6, -12), textcoords="offset points",
                    color=colour, fontsize=9,
                )  # fmt: skip
        axes.plot(*GIRGIS, "D", color=BASELINE, label="Girgis et al. 2021, 80 reports per user: 76.7 %")
        axes.set_xscale("log")
        axes.set_xlim(0.03, 8)
        by_error(axes, TICKS)
        axes.set_ylim(70, 98)
        axes.legend(frameon=False, loc="lower left")


if __name__ == "__main__":
    draw()
