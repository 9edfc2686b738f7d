"""Shared by the pictures of the documentation: tables of docs/results.md, the style of a report's images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqsgd.report.images import STYLE, image
from sqsgd.report.styles import LIGHT

DOCS = Path(__file__).parents[1]
OURS, OTHERS, BASELINE = LIGHT.series[2], LIGHT.series[0], LIGHT.muted
TEXTS = ("font.size", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")


def section(heading: str) -> str:
    """The part of docs/results.md below a heading."""
    return (DOCS / "results.md").read_text().split(heading)[1].split("\n## ")[0]


@contextmanager
def axes_for(path: Path, *, height: float, x: str, title: str) -> Iterator[Any]:
    """Axes of test accuracy to draw on; the picture is written at the end."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, **dict.fromkeys(TEXTS, 11)}):
        figure = Figure(figsize=(8.4, height), layout="constrained", facecolor="white")  # on dark pages too
        axes = figure.add_subplot()
        yield axes
        axes.set(xlabel=x, ylabel="test accuracy, %")
        axes.set_title(title, fontsize=11)
        axes.grid(color=LIGHT.line, linewidth=0.6)
        axes.set_axisbelow(True)
        path.write_bytes(image(figure, "svg"))
