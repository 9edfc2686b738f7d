"""Shared by the pictures of the documentation: tables of docs/results, colours and matplotlib's style."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sqsgd.report.charts import COLOURS, SERIES

DOCS = Path(__file__).parents[1]
ACCURACY = "test accuracy, %"
LIGHT, DARK = (
    SimpleNamespace(**{name: pair[i] for name, pair in COLOURS.items()}, series=[pair[i] for pair in SERIES])
    for i in (0, 1)
)
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "sqsgd",
}
OURS, OTHERS, BASELINE = LIGHT.series[2], LIGHT.series[0], LIGHT.muted
TEXTS = ("font.size", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")


def section(heading: str) -> str:
    """The part of a page of docs/results below a heading."""
    pages = [page.read_text() for page in sorted((DOCS / "results").glob("*.md"))]
    (found,) = (text.partition(f"\n{heading}\n")[2] for text in pages if f"\n{heading}\n" in text)
    return found.split("\n## ")[0]


@contextmanager
def axes_for(path: Path, *, height: float, x: str, title: str, y: str = ACCURACY) -> Iterator[Any]:
    """Axes to draw on; the picture is written at the end."""
    with _sheet(path, height, 1, x, y) as (_, (axes,)):
        yield axes
        axes.set_title(title, fontsize=11)


@contextmanager
def panels_for(path: Path, count: int, *, x: str) -> Iterator[list[Any]]:
    """Several axes of test accuracy, side by side, with one legend below."""
    with _sheet(path, 4.8, count, x, ACCURACY) as (figure, panels):
        yield panels
        handles = {}
        for axes in panels:
            lines, names = axes.get_legend_handles_labels()
            handles.update(zip(names, lines, strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False)


def by_error(axes: Any, ticks: Sequence[int]) -> None:
    """Heights by the logarithm of the error, so that lines near 100 % stay apart."""
    stretched, squeezed = (lambda y: -np.log(np.maximum(100.5 - y, 1e-3))), (lambda y: 100.5 - np.exp(-y))
    axes.set_yscale("function", functions=(stretched, squeezed))
    axes.set_yticks(ticks, [str(tick) for tick in ticks])


@contextmanager
def _sheet(path: Path, height: float, count: int, x: str, y: str) -> Iterator[tuple[Any, list[Any]]]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, **dict.fromkeys(TEXTS, 11)}):
        figure = Figure(figsize=(8.4, height), layout="constrained", facecolor=LIGHT.surface)
        panels = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
        yield figure, panels
        panels[0].set_ylabel(y)
        for axes in panels:
            axes.set_xlabel(x)
            axes.grid(color=LIGHT.line, linewidth=0.6)
            axes.set_axisbelow(True)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        path.write_text(_themed(buffer.getvalue()))


def _themed(svg: str) -> str:
    """An SVG in light colours that turns dark where the page around it, or the reader's system, is dark."""
    light, dark = vars(LIGHT), vars(DARK)
    pairs = {light[name]: dark[name] for name in ("surface", "ink", "muted", "line", "accent")}
    pairs |= dict(zip(LIGHT.series, DARK.series, strict=True)) | {"#000000": DARK.ink}
    rules = [f"text{{fill:{DARK.ink}}}"]
    for old, new in pairs.items():
        rules += [f'[style*="{kind}: {old}"]{{{kind}:{new}!important}}' for kind in ("fill", "stroke")]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    return svg.replace("<defs>", f"{style}\n <defs>", 1)
