"""Draws docs/pictures/large-budget.png: what gradient inversion finds in one report about one image.

python docs/pictures/large_budget.py         # minutes: eight attacks for each budget and image
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from sqsgd.audit.findings import Finding
from sqsgd.audit.inversion import inverted_gradients
from sqsgd.audit.subject import Subject
from sqsgd.core.random import seeded_rng
from sqsgd.schemes import make_scheme

PICTURE = Path(__file__).with_name("large-budget.png")
BUDGETS = ((20_000, 25_000), (400, 256))
SEEDS = (0, 1)


def attacked(epsilon: int, size: int, seed: int) -> Finding:
    """One image of MNIST, and the best guess at it from one report of LeNet-5's gradient."""
    subject = Subject(
        name="sqsgd",
        make=partial(make_scheme, "sqsgd"),
        epsilon=float(epsilon),
        bytes=size,
        seed=seed,
        noise=partial(seeded_rng, seed),
    )
    return next(inverted_gradients(subject))


def draw(path: Path = PICTURE) -> None:
    """Draw the originals in the first row, and a row for each budget."""
    figure = Figure(figsize=(6.4, 2.2 * (1 + len(BUDGETS))), facecolor="white", layout="constrained")
    axes = figure.subplots(1 + len(BUDGETS), len(SEEDS), squeeze=False)
    for column, seed in enumerate(SEEDS):
        for row, (epsilon, size) in enumerate(BUDGETS, 1):
            found = attacked(epsilon, size, seed)
            likeness, blind = found.measured, found.details["blind"]
            about = f"{epsilon} {size} image {seed}: {likeness:.3f}; from a report about another {blind:.3f}"
            print(about, flush=True)  # noqa: T201
            axes[0][column].imshow(found.pictures["Original"][0], cmap="gray")
            axes[row][column].imshow(found.pictures["From one report"][0], cmap="gray")
            title = f"ε = {epsilon:,}, {size:,} bytes: {likeness:.2f}"
            axes[row][column].set_title(title, fontsize=8)
        axes[0][column].set_title("the image at the node", fontsize=8)
    for each in axes.flat:
        each.set_axis_off()
    figure.savefig(path, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    draw()
