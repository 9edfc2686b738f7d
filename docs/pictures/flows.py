"""Draws the flow of a report, in general and for each way of running sqsgd: docs/pictures/flow*.svg.

python docs/pictures/flows.py
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from drawing import DARK, LIGHT

FOLDER = Path(__file__).parent
WIDTH, HEIGHT, BOX, TOP = 760, 250, 184, 56


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Three boxes from left to right, and the words on the arrows between them."""

    boxes: tuple[tuple[str, tuple[str, ...]], ...]
    sent: tuple[str, str]
    """Above and below the arrow of the report; a bar ends a line."""
    published: tuple[str, str]
    back: str
    own: str = "data stay here"
    private: str = "leaves only with noise"


FLOWS = {
    "flow": Flow(
        boxes=(
            ("Device or node", ("data, gradient", "+ noise")),
            ("Server", ("adds many reports,", "averages out noise")),
            ("Model", ("moves by", "the average")),
        ),
        sent=("report", "7 noisy|bytes"),
        published=("one step", "per round"),
        back="the next model, and a public task for each client",
    ),
    "flow-devices": Flow(
        boxes=(
            ("Phone or browser", ("ledger pays ε once,", "then + noise")),
            ("sqsgd collect", ("one report per", "invitation")),
            ("Published model", ("after each round,", "with both ε")),
        ),
        sent=("report", "7 noisy|bytes"),
        published=("round", "is full"),
        back="the study, a task and the model",
    ),
    "flow-federation": Flow(
        boxes=(
            ("Node of an owner", ("limits, ledger pays ε,", "app, then + noise")),
            ("SqsgdStrategy", ("behind nginx; checks", "and averages")),
            ("Model", ("moves by", "the average")),
        ),
        sent=("report", "98 bytes|at ε = 400"),
        published=("one step", "per round"),
        back="a request within the owner's limits, and the model",
    ),
    "flow-simulation": Flow(
        boxes=(
            ("Simulated clients", ("gradients of parts of", "a data set, + noise")),
            ("Server step", ("the same code as", "in a federation")),
            ("Run folder", ("model, metrics,", "summary, page")),
        ),
        sent=("report", "real bytes"),
        published=("record", "per round"),
        back="the next model, and a public task for each client",
        own="all data are in one place",
        private="one process: nothing leaves",
    ),
}


def text(x: float, y: float, words: str, size: int = 14, kind: str = "", weight: str = "normal") -> str:
    """Centred words."""
    return (
        f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" font-weight="{weight}"'
        f' class="{kind or "ink"}">{escape(words)}</text>'
    )


def arrow(*points: tuple[float, float], kind: str = "line") -> str:
    """A path through the points with a head at its end."""
    path = " L ".join(f"{x} {y}" for x, y in points)
    return f'<path d="M {path}" class="{kind}" fill="none" marker-end="url(#{kind}-head)"/>'


def svg(flow: Flow) -> str:
    """The drawing."""
    gap = (WIDTH - 3 * BOX - 20) / 2
    lefts = [10 + i * (BOX + gap) for i in range(3)]
    middle = TOP + 50
    parts = []
    for i, ((title, lines), x) in enumerate(zip(flow.boxes, lefts, strict=True)):
        kind = "own" if i == 0 else "box"
        parts.append(f'<rect x="{x}" y="{TOP}" width="{BOX}" height="100" rx="10" class="{kind}"/>')
        parts.append(text(x + BOX / 2, TOP + 28, title, 15, weight="bold"))
        parts += [text(x + BOX / 2, TOP + 54 + 21 * n, line) for n, line in enumerate(lines)]
    for i, words in enumerate((flow.sent, flow.published)):
        start, end = lefts[i] + BOX, lefts[i + 1]
        parts.append(arrow((start + 4, middle), (end - 8, middle), kind="ours" if i == 0 else "line"))
        parts.append(text((start + end) / 2, middle - 10, words[0], 12, "ours-text" if i == 0 else ""))
        for n, word in enumerate(words[1].split("|")):
            parts.append(
                text((start + end) / 2, middle + 20 + 15 * n, word, 12, "ours-text" if i == 0 else "")
            )
    low = TOP + 100
    first, last = lefts[0] + BOX / 2, lefts[2] + BOX / 2
    parts.append(arrow((last, low + 4), (last, low + 46), (first, low + 46), (first, low + 8)))
    parts.append(text(WIDTH / 2, low + 66, flow.back, 13))
    parts.append(text(lefts[0] + BOX / 2, TOP - 14, flow.own, 13, "own-text", "bold"))
    parts.append(text(WIDTH / 2, TOP - 14, flow.private, 13, "ours-text"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="system-ui, Liberation Sans, Arial, sans-serif">{style()}'
        f'<rect width="{WIDTH}" height="{HEIGHT}" class="sheet"/>{"".join(parts)}</svg>\n'
    )


def style() -> str:
    """Light colours, and dark ones where the reader's system is dark; heads of the arrows."""

    def rules(colours: object, own: str, ours: str) -> str:
        of = vars(colours)
        return (
            f".sheet{{fill:{of['surface']}}}.ink{{fill:{of['ink']}}}.own-text{{fill:{own}}}.ours-text{{fill:{ours}}}"
            f".box{{fill:none;stroke:{of['muted']};stroke-width:1.5}}.own{{fill:none;stroke:{own};stroke-width:2.5}}"
            f".line{{stroke:{of['muted']};stroke-width:1.5}}.ours{{stroke:{ours};stroke-width:2.5}}"
            f".line-head{{fill:{of['muted']}}}.ours-head{{fill:{ours}}}"
        )

    heads = "".join(
        f'<marker id="{kind}-head" viewBox="0 0 8 8" refX="6" refY="4" orient="auto"'
        f' markerWidth="{size}" markerHeight="{size}">'
        f'<path d="M0 0 L8 4 L0 8 z" class="{kind}-head"/></marker>'
        for kind, size in (("line", 7), ("ours", 5))
    )
    light, dark = rules(LIGHT, *LIGHT.series[:3:2]), rules(DARK, *DARK.series[:3:2])
    return f"<defs><style>{light}@media (prefers-color-scheme: dark){{{dark}}}</style>{heads}</defs>"


def main() -> None:
    """Write every drawing."""
    for name, flow in FLOWS.items():
        (FOLDER / f"{name}.svg").write_text(svg(flow))


if __name__ == "__main__":
    main()
