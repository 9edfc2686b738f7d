"""Colours, dashes, markers and patterns for the page's style sheet, its figures and the images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of the page; colour-blind readers can tell those of ``series`` apart too."""

    background: str
    surface: str
    ink: str
    muted: str
    line: str
    accent: str
    warning: str
    series: tuple[str, ...]


LIGHT = Theme(
    background="#f7f8f9",
    surface="#ffffff",
    ink="#1c2128",
    muted="#545d68",
    line="#d7dce1",
    accent="#0a58a8",
    warning="#8a4b00",
    series=("#0a5fa8", "#c75000", "#00805c", "#a8327f", "#5e4a00", "#303030", "#2b93c9", "#9a76e8"),
)
DARK = Theme(
    background="#12161b",
    surface="#1a2027",
    ink="#e7eaee",
    muted="#a9b3be",
    line="#36404a",
    accent="#82bdff",
    warning="#f0b866",
    series=("#62b0f2", "#ff9a4d", "#35cf9f", "#f191cb", "#f4f0a0", "#d0d0d0", "#a6ecff", "#8467dd"),
)


@dataclass(frozen=True, kw_only=True)
class Marker:
    """One shape: its name in plotly and in matplotlib, and an SVG path around the origin for the keys."""

    plotly: str
    matplotlib: str
    path: str


MARKERS = (
    Marker(plotly="circle", matplotlib="o", path="M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    Marker(plotly="square", matplotlib="s", path="M-3.5-3.5h7v7h-7z"),
    Marker(plotly="triangle-up", matplotlib="^", path="M0-4.5L4.5 3.5h-9z"),
    Marker(plotly="diamond", matplotlib="D", path="M0-5L5 0L0 5L-5 0z"),
    Marker(plotly="triangle-down", matplotlib="v", path="M0 4.5L4.5-3.5h-9z"),
    Marker(plotly="cross", matplotlib="P", path="M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"),
    Marker(plotly="pentagon", matplotlib="p", path="M0-4.6L4.4-1.4L2.7 3.7h-5.4L-4.4-1.4z"),
)


PATTERNS = ("", "/", "x", ".")
"""How bars differ without colours, in plotly's names; matplotlib draws a pattern densely if it is doubled."""
DASHES: tuple[tuple[int, ...], ...] = ((), (8, 3), (2, 2), (8, 3, 2, 3), (14, 4), (8, 2, 2, 2, 2, 2))


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """How a group is drawn in every figure; the first 168 styles are distinct."""

    colour: int
    dash: tuple[int, ...]
    marker: Marker


def series_style(series: int) -> SeriesStyle:
    """The style of a group; colour, dash and marker repeat with different periods."""
    return SeriesStyle(
        colour=series % len(LIGHT.series),
        dash=DASHES[series % len(DASHES)],
        marker=MARKERS[series % len(MARKERS)],
    )


def style_sheet() -> str:
    """The style sheet of pages, with the colours of both themes as variables."""
    light, dark = asdict(LIGHT), asdict(DARK)
    pairs = {name: (light[name], dark[name]) for name in light if name != "series"}
    for index, pair in enumerate(zip(LIGHT.series, DARK.series, strict=True)):
        pairs[f"series-{index}"] = pair
    colours = "".join(f"--{name}:light-dark({a},{b});" for name, (a, b) in pairs.items())
    css = resources.files("sqsgd.report").joinpath("page.css").read_text(encoding="utf-8")
    return f":root{{{colours}}}\n{css}"
