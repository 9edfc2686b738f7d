"""Draws what ε means: epsilon-in-words.svg, total-epsilon.svg and ladder-of-trust.svg in docs/pictures.

python docs/pictures/epsilon.py         # seconds; the ladder computes its three certificates
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
from drawing import LIGHT, OURS, axes_for

from sqsgd import central_guarantee, make_scheme

FOLDER = Path(__file__).parent
USERS, ROUND, DELTA, LOCAL = 60_000, 1_500, 1e-6, 4.0


def words() -> None:
    """The best guess among M equally likely possibilities against ε."""
    path, title = (
        FOLDER / "epsilon-in-words.svg",
        "The best guess of an observer after reports with this total ε",
    )
    x, y = "total ε of the reports that the observer saw", "probability of a right guess, %"
    with axes_for(path, height=4.2, x=x, y=y, title=title) as axes:
        at = np.geomspace(0.05, 32, 400)
        for count, name, colour in zip(
            (2, 100, 10**6), ("2 possibilities", "100", "a million"), LIGHT.series, strict=False
        ):
            axes.plot(at, 100 / (1 + (count - 1) * np.exp(-at)), color=colour, label=name)
        for epsilon, drop in ((0.5, -14), (1, -14), (2, -14), (4, -16), (8, -16)):
            height = 100 / (1 + np.exp(-epsilon))
            axes.plot([epsilon], [height], "o", color=LIGHT.series[0], markersize=5)
            axes.annotate(
                f"{height:.{2 if height > 99.9 else 1}f} %", (epsilon, height), xytext=(6, drop),
                textcoords="offset points", color=LIGHT.series[0], fontsize=9,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        ticks = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set(xlim=(0.1, 32), ylim=(0, 103))
        axes.legend(frameon=False, loc=(0.03, 0.12), title="equally likely before")


def totals() -> None:
    """T · ε against T."""
    path, title = (
        FOLDER / "total-epsilon.svg",
        "The total ε of a client: one report's ε times the number of reports",
    )
    with axes_for(path, height=4.2, x="reports of one client", y="total ε", title=title) as axes:
        rounds = np.array([1, 1000])
        for epsilon, colour in zip((400, 40, 4, 1), LIGHT.series, strict=False):
            axes.plot(rounds, epsilon * rounds, color=colour)
            axes.annotate(
                f"ε = {epsilon} each", (1000, 1000 * epsilon), xytext=(6, -3), textcoords="offset points",
                color=colour, fontsize=9,
            )  # fmt: skip
        axes.plot([600], [240_000], "o", color=LIGHT.series[0])
        axes.annotate(
            "the default run: 600 reports, 240,000", (600, 240_000), xytext=(-10, 4), ha="right",
            textcoords="offset points", color=LIGHT.series[0], fontsize=9,
        )  # fmt: skip
        axes.axhspan(0.5, 8, color=OURS, alpha=0.12, linewidth=0)
        axes.annotate("single-digit totals", (2.2, 0.62), color=OURS, fontsize=9)
        axes.set(xscale="log", yscale="log", xlim=(1, 4000), ylim=(0.5, 1e6))
        axes.set_xticks([1, 10, 100, 600, 1000], ["1", "10", "100", "600", "1,000"])
        axes.set_yticks([1, 8, 100, 10_000, 240_000], ["1", "8", "100", "10,000", "240,000"])
        axes.minorticks_off()


def ladder() -> None:
    """Local and central ε of the same report, by what stays secret."""
    scheme = make_scheme("privunit-index", dim=3920, epsilon=LOCAL)
    run = central_guarantee(scheme, users=USERS, delta=DELTA).epsilon
    shared = central_guarantee(scheme, users=ROUND, delta=DELTA, order="round").epsilon
    steps = (
        ("against everyone, if nothing else is secret", LOCAL, LIGHT.series[1]),
        (
            "against the relay, or readers of the models if\nonly the order in each round of 1,500 is secret",
            shared,
            LIGHT.series[0],
        ),
        (
            "against the service behind a relay, and readers of\nthe models: secret order over all 60,000",
            run,
            OURS,
        ),
    )
    path = FOLDER / "ladder-of-trust.svg"
    title = "One user among 60,000 who report once (δ = 10⁻⁶ for the lower two)"
    with axes_for(path, height=2.9, x="ε of the user", y="", title=title) as axes:
        for row, (_, epsilon, colour) in enumerate(steps):
            axes.barh(-row, epsilon, left=0, color=colour, height=0.55)
            axes.annotate(
                f"{ceil(epsilon * 1000) / 1000:.3g}", (epsilon, -row), xytext=(6, 0),
                textcoords="offset points", va="center", color=colour, fontweight="bold",
            )  # fmt: skip
        axes.set_yticks([0, -1, -2], [label for label, *_ in steps], fontsize=9)
        axes.set_xlim(0, 4.5)


def main() -> None:
    """Draw all three."""
    words()
    totals()
    ladder()


if __name__ == "__main__":
    main()
