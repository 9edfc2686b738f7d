"""What the pictures of the documents share: a table of docs/results.md in, the same bytes out each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]


def section(heading: str) -> str:
    """The part of docs/results.md below a heading."""
    return (DOCS / "results.md").read_text().split(heading)[1].split("\n## ")[0]


@contextmanager
def axes_for(path: Path, *, height: float, x: str, title: str) -> Iterator[Any]:
    """Axes of test accuracy to draw on; the picture is written at the end."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "sqsgd", "svg.fonttype": "none", "font.size": 11})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.4, height))
    yield axes
    axes.set_xlabel(x)
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title, fontsize=11)
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.patch.set_facecolor("white")  # readable on dark pages too
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": "sqsgd"})
    plt.close(figure)
