"""Rebuilds docs/results/reproduction.md, the table of clients with few classes, and their pictures.

python docs/pictures/reproduction.py                 # from docs/assets/reproduction; nothing is trained
python docs/pictures/reproduction.py --runs FOLDER   # reads the sweeps in FOLDER first, finished or not
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from claims import CLAIMS, DIFFERS
from drawing import BASELINE, DOCS, LIGHT, panels_for
from sweep_results import FOLDER, Curve, Results, collect, keep, read

from sqsgd.report.charts import DASHES

PAGES = (DOCS / "results/reproduction.md", DOCS / "results/large-epsilon.md")
BLOCK = re.compile(r"<!-- begin: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
SCHEMES = {
    "sqsgd": "`sqsgd`, the earlier default",
    "sqsgd-stateless": "`sqsgd-stateless`",
    "sqsgd-paper": "sqSGD, fixed U = 10",
    "piecewise": "PM (`piecewise`)",
    "ldp-fed": "LDP-Fed",
    "ldp-fl": "LDP-FL",
    "vqsgd": "vqSGD",
    "fedsgd": "FedSGD, not private",
}
SERIES = (0, 1, 2, 3, 4, 5, 7)  # styles of the arms; 6 looks like 0
SAMPLED = {"bytes 128": "1", "bytes 512": "5", "bytes 1024": "10", "bytes 4096": "50"}
"""Per mille of the coordinates, in figure 2."""
PANELS = {"partition dirichlet:0.1": "Dirichlet 0.1", "partition shards:1": "one class per client"}


def label(arm: str) -> str:
    """An arm in the words of the paper."""
    if arm in SAMPLED:
        return f"r = {SAMPLED[arm]} ‰"
    if found := re.search(r"^(?:bytes \d+, )?levels (\d+)$", arm):
        return f"K = {found[1]}"
    if found := re.fullmatch(r"epsilon (\d+)", arm):
        return f"ε = {found[1]}"
    scheme, *options = arm.split(", ")
    return "sqSGD, adaptive U" if "adaptive True" in options else SCHEMES[scheme]


def panel_label(panel: str) -> str:
    """A panel in the words of the paper."""
    return PANELS.get(panel, panel.replace("epsilon ", "ε = "))


def picture(name: str) -> Path:
    """The picture of a sweep."""
    return DOCS / "pictures" / f"reproduction-{name}.svg"


def draw(results: Results, path: Path) -> None:
    """One picture of a sweep: axes for each of its panels, a curve for each arm that has a finished run."""
    arms = [arm for arm in dict.fromkeys(curve.arm for curve in results.curves) if arm != "fedsgd"]
    few = {curve.arm for curve in results.curves if 0 < curve.seeds < len(results.seeds)}
    with panels_for(path, len(results.panels), x="round") as axes:
        for panel, each in zip(results.panels, axes, strict=True):
            each.set_title(panel_label(panel), fontsize=11)
            each.set(xlim=(0, 1.03 * results.rounds), ylim=(0, 100))
            for curve in results.panel(panel):
                if curve.seeds:
                    series = SERIES[arms.index(curve.arm)] if curve.arm in arms else 1
                    colour = LIGHT.series[series % len(LIGHT.series)] if curve.arm in arms else BASELINE
                    name = label(curve.arm).replace("`", "") + (" *" if curve.arm in few else "")
                    _draw_curve(each, curve, series, colour, name)


def _draw_curve(axes: Any, curve: Curve, series: int, colour: str, name: str) -> None:
    dash = DASHES[series % len(DASHES)]
    axes.plot(
        curve.rounds, curve.mean, color=colour, linewidth=1.5, marker="os^DvPp"[series % 7], markersize=4,
        linestyle=(0, tuple(length / 2 for length in dash)) if dash[1] else "solid", label=name,
    )  # fmt: skip
    if curve.half_widths:
        bounds = zip(curve.mean, curve.half_widths, strict=True)
        low, high = zip(*((mean - half, mean + half) for mean, half in bounds), strict=True)
        axes.fill_between(curve.rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def block(name: str) -> str:
    """What a page shows of a sweep: progress, picture, table and what the paper says."""
    if name == "progress":
        return progress()
    if not (FOLDER / f"{name}.json").exists():
        return f"Not yet run. `sqsgd compare --config {_file(name)} --data-dir DIR`\n"
    results = read(name)
    state = "" if results.complete else f"{results.runs_done} of {results.runs} runs are finished. "
    parts = [f"{state}`sqsgd compare --config {_file(name)} --data-dir DIR`"]
    if any(curve.seeds for curve in results.curves):
        parts.append(f"![{results.title}](../pictures/{picture(name).name})")
    if any(curve.rate is not None for curve in results.curves):
        parts.append(_table(results))
    if any(0 < curve.seeds < len(results.seeds) for curve in results.curves):
        parts.append("\\* Curves of fewer seeds than planned.")
    if name in CLAIMS:
        parts.append(_claims(results))
    return "\n\n".join(parts) + "\n"


def _file(name: str) -> str:
    """The file of a sweep, relative to the root."""
    (file,) = (DOCS.parent / "experiments").rglob(f"{name}.toml")
    return file.relative_to(DOCS.parent).as_posix()


def _table(results: Results) -> str:
    panelled = len(results.panels) > 1
    lines = [
        f"|{' panel |' if panelled else ''} arm | accuracy | seeds | rate | ε per round | bytes |",
        f"|{'---|' if panelled else ''}---|---|---|---|---|---|",
    ]
    for panel in results.panels:
        rows = sorted(results.panel(panel), key=lambda curve: -curve.final if curve.seeds else 0.0)
        for curve in rows:
            first = f" {panel_label(panel)} |" if panelled else ""
            lines.append(f"|{first} {_row(curve, results)} |")
    return "\n".join(lines)


def _row(curve: Curve, results: Results) -> str:
    seeds = len(results.seeds)
    half = f" ± {curve.half_widths[-1]:.2f}" if curve.half_widths else ""
    accuracy = f"{curve.final:.2f}{half} %" if curve.seeds else "missing"
    if not curve.seeds and curve.rate is not None:
        found = f"{curve.tried[f'{curve.rate:g}']:.1f} %"
        accuracy += (
            f" ({found} on held-out images after the {results.tuning_rounds} rounds that chose the rate)"
        )
    failed = f", {curve.failed} diverged" if curve.failed else ""
    rates = {*results.rates, *map(float, curve.tried)}
    edge = len(rates) > 1 and curve.rate in (min(rates), max(rates))
    private = "none" if curve.epsilon is None else f"{curve.epsilon:.0f}"
    cells = [
        label(curve.arm),
        accuracy,
        f"{curve.seeds} of {seeds}{failed}",
        "" if curve.rate is None else f"{curve.rate:g}{' (edge)' if edge else ''}",
        private if curve.seeds else "",
        "" if curve.bytes is None else f"{curve.bytes:,}",
    ]
    return " | ".join(cells)


def _claims(results: Results) -> str:
    lines, reasons = ["| the paper | here | |", "|---|---|---|"], []
    for claim in CLAIMS[results.name]:
        for panel in results.panels:
            numbers, verdict = claim.found(results.panel(panel))
            where = f" ({panel_label(panel)})" if panel else ""
            lines.append(f"| {_worded(claim.says)}{where} | {numbers} | {verdict} |")
            if verdict == DIFFERS and claim.why:
                reasons.append(claim.why)
    return "\n\n".join(["\n".join(lines), *dict.fromkeys(reasons)])


def _worded(says: str) -> str:
    """A claim with the labels of the arms that it names."""
    return re.sub(r"bytes \d+, levels \d+|epsilon \d+", lambda found: label(found[0]), says)


def progress() -> str:
    """How far each sweep has come."""
    lines = ["| sweep | runs finished | CPU time |", "|---|---|---|"]
    for name in CLAIMS:
        if (FOLDER / f"{name}.json").exists():
            results = read(name)
            minutes = f"{results.cpu_minutes:.0f} min" if results.cpu_minutes else ""
            lines.append(f"| {results.title} | {results.runs_done} of {results.runs} | {minutes} |")
        else:
            lines.append(f"| {name} | none | |")
    return "\n".join(lines) + "\n"


def rebuilt(text: str) -> str:
    """A page with the blocks between its markers written again."""
    return BLOCK.sub(lambda found: f"<!-- begin: {found[1]} -->\n{block(found[1])}<!-- end -->", text)


def main() -> None:
    """Collect if asked to, draw, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="a folder of sweeps' folders")
    runs = parser.parse_args().runs
    for folder in sorted(path.parent for path in runs.glob("*/sweep.toml")) if runs else []:
        keep(collect(folder, runs / f"{folder.name}.times"))
    for path in FOLDER.glob("*.json"):
        if any(curve.seeds for curve in read(path.stem).curves):
            draw(read(path.stem), picture(path.stem))
    for page in PAGES:
        page.write_text(rebuilt(page.read_text()))


if __name__ == "__main__":
    main()
