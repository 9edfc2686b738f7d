"""Draws docs/pictures/accuracy-against-central.svg from the tables in docs/results; nothing is trained.

python docs/pictures/accuracy_against_central.py
"""

from __future__ import annotations

import re
from pathlib import Path

from drawing import BASELINE, LIGHT, axes_for, by_error, section

PICTURE = Path(__file__).with_name("accuracy-against-central.svg")
TRUSTED, SEVERAL, ONCE = (
    "## A trusted server",
    "## Several reports, one central epsilon",
    "## Formula features",
)
ROW = re.compile(r"^\| MNIST(?:, soft-hog)? \| (.*) \| \*\*([\d.]+) %\*\*", re.MULTILINE)
CENTRAL = {TRUSTED: 1, SEVERAL: 2, ONCE: 1}  # the column
TICKS = (70, 80, 85, 90, 93, 95, 96, 97, 98)
GIRGIS = (5.0, 76.7)  # Girgis et al. 2021, 60,000 users with 80 reports each


def points(heading: str) -> list[tuple[float, float, str]]:
    """Central ε, accuracy and label on MNIST of the rows below a heading."""
    rows = [(cells.split(" | "), float(reached)) for cells, reached in ROW.findall(section(heading))]
    several = heading == SEVERAL
    return [
        (float(cells[CENTRAL[heading]]), reached, f"{cells[0]}: " * several + f"{reached:.2f} %")
        for cells, reached in rows
    ]


def draw(path: Path = PICTURE) -> None:
    """Draw the picture."""
    title = "MNIST, 60,000 users, fixed features, δ = 10⁻⁶: means over seeds"
    curves = (
        (sorted(points(TRUSTED)), "a server that sees all gradients", LIGHT.series[1], "s--"),
        (
            sorted(points(SEVERAL)),
            "several reports per user (number x ε), local",
            LIGHT.series[2],
            "o",
        ),
        (sorted(points(ONCE)), "one report per user, local", LIGHT.series[0], "^-"),
    )
    with axes_for(path, height=4.8, x="central ε (log scale)", title=title) as axes:
        for found, label, colour, style in curves:
            axes.plot([x for x, _, _ in found], [y for _, y, _ in found], style, color=colour, label=label)
            place = {"s--": (-8, 7), "o": (8, -8), "^-": (6, -12)}[style]
            for x, y, words in found:
                text = {"xytext": place, "textcoords": "offset points", "color": colour, "fontsize": 9}
                axes.annotate(words, (x, y), **text)
        axes.plot(*GIRGIS, "D", color=BASELINE, label="Girgis et al. 2021, 80 reports per user: 76.7 %")
        axes.set_xscale("log")
        axes.set_xlim(0.01, 9)
        by_error(axes, TICKS)
        axes.set_ylim(62, 98)
        axes.legend(frameon=False, loc=(0.42, 0.2))


if __name__ == "__main__":
    draw()
