"""The results as LaTeX, for a paper: a booktabs table, and the figures that go with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sqsgd.files.durable import write_atomically
from sqsgd.report.charts import Chart, SplitChart
from sqsgd.report.groups import Group
from sqsgd.report.images import write_charts
from sqsgd.training.summary import ACCURACY

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "ε": r"$\varepsilon$",
    "δ": r"$\delta$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip


def write_latex(
    groups: Sequence[Group], charts: Sequence[Chart | SplitChart], folder: str | Path, title: str
) -> list[Path]:
    """Write ``table.tex``, ``figures.tex`` and the figures as PDF, to be used with ``\\input``."""
    target = Path(folder)
    images = write_charts(charts, target, "pdf")
    named = {path.stem: path for path in images}
    pieces = [_figure(chart) for chart in charts if chart.name in named]
    needs = (
        "% needs \\usepackage{graphicx}, and \\graphicspath{{FOLDER/}} if the document is in another folder\n"
    )
    for name, text in (("table", latex_table(groups, title)), ("figures", needs + "\n".join(pieces))):
        write_atomically(target / f"{name}.tex", text.encode())
    return [target / "table.tex", target / "figures.tex", *images]


def latex_table(groups: Sequence[Group], title: str) -> str:
    """The table of results, one row per group; it needs the package ``booktabs``."""
    headline = groups[0].headline if groups else ACCURACY
    measured = escaped(headline.name) + (r" (\%)" if headline.is_share else "")
    several = any(not math.isnan(group.accuracy[1]) for group in groups)
    rows = "\n".join(_row(group, several=several) for group in groups)
    note = (
        r" $\pm$: half the width of the 95\,\% confidence interval (Student's $t$) over the runs."
        if several
        else ""
    )
    parts = [group for group in groups if group.state != "finished"]
    if parts:
        reached = [f"{group.label} at round {group.rounds} of {group.config.rounds}" for group in parts]
        note += rf" $^\dagger$\,Not finished: {escaped('; '.join(reached))}."
    return (
        "% needs \\usepackage{booktabs}; written by sqsgd report --latex\n"
        "\\begin{table}\n"
        "\\centering\n"
        f"\\caption{{{escaped(title)}.{note}}}\n"
        "\\label{tab:results}\n"
        "\\begin{tabular}{lrrrlrrr}\n"
        "\\toprule\n"
        rf" & runs & {measured} & rate & privacy & $\varepsilon$ per report & total $\varepsilon$ & bytes \\"
        "\n\\midrule\n"
        f"{rows}\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\end{table}\n"
    )


def _row(group: Group, *, several: bool) -> str:
    mean, half = group.accuracy
    value = f"{100 * mean:.2f}" if group.headline.is_share else f"{mean:.4g}"
    width = f"{100 * half:.2f}" if group.headline.is_share else f"{half:.2g}"
    measured = "--"
    if not math.isnan(mean):
        pad = r"\phantom{{} \pm 0.00}" if several else ""  # so that the points stand below each other
        measured = f"${value}" + (f"{pad}$" if math.isnan(half) else rf" \pm {width}$")
    cells = [
        escaped(group.label) + ("" if group.state == "finished" else r"$^\dagger$"),
        str(len(group.counted)),
        measured,
        _number(group.lr),
        group.notion.replace("-", " "),
        _number(group.last("epsilon")),
        _number(group.last("epsilon_total")),
        _number(group.last("bytes_up")),
    ]
    return " & ".join(cells) + r" \\"


def _number(value: float) -> str:
    """A number with thin spaces between thousands.

    >>> _number(16000.0), _number(float("inf")), _number(float("nan")), _number(398.5794)
    ('$16\\\\,000$', '$\\\\infty$', '--', '$398.6$')
    """
    if math.isnan(value):
        return "--"
    if math.isinf(value):
        return r"$\infty$"
    text = f"{value:,.0f}".replace(",", r"\,") if value >= 1000 else f"{value:.4g}"
    return f"${text}$"


def _figure(chart: Chart | SplitChart) -> str:
    caption = f"{chart.title}. {chart.caption}"
    return (
        "\\begin{figure}\n"
        "\\centering\n"
        f"\\includegraphics{{{chart.name}.pdf}}\n"
        f"\\caption{{{escaped(caption)}}}\n"
        f"\\label{{fig:{chart.name}}}\n"
        "\\end{figure}\n"
    )


def escaped(text: str) -> str:
    r"""Text as LaTeX; letters outside ASCII need a font that has them, as with \usepackage[utf8]{inputenc}.

    >>> escaped("50 % of K_1 & ε 8")
    '50 \\% of K\\_1 \\& $\\varepsilon$ 8'
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
