"""How closely a server sees a model's accuracy on its nodes' data, from one private number of each.

    python benchmarks/node_evaluation.py

Every cell is half the width of the 95 % interval and, behind it, the error that 95 % of seeded simulations
stayed below. The nodes' accuracies are spread evenly from 0.8 to 1.
"""

from __future__ import annotations

import numpy as np

from sqsgd import seeded_rng
from sqsgd.mechanisms.one_number import OneNumber, mean_of

NODES = (3, 10, 30, 100, 1000)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
NUMBERS = 200_000
"""Private numbers that are drawn for each cell."""


def cell(epsilon: float, nodes: int) -> str:
    """The half width, and the simulated error."""
    mechanism, accuracies = OneNumber(epsilon=epsilon), np.linspace(0.8, 1.0, nodes)
    words = seeded_rng(nodes).words(3 * nodes * (NUMBERS // nodes)).reshape(-1, nodes, 3)
    errors = []
    for trial in words:
        symbols, sure = mechanism.scalar.privatize_many(accuracies, trial)
        if sure.all():
            columns = [(np.array([symbol]),) for symbol in symbols]
            errors.append(abs(mean_of(mechanism, columns, 1.0).value - accuracies.mean()))
    return f"±{mechanism.half_width(nodes, 1.0):.3f} ({np.quantile(errors, 0.95):.3f})"


def main() -> None:
    """Print the table."""
    print("| nodes |" + "".join(f" ε = {epsilon:g} |" for epsilon in EPSILONS))
    print("|---|" + "---|" * len(EPSILONS))
    for nodes in NODES:
        print(f"| {nodes:,} |" + "".join(f" {cell(epsilon, nodes)} |" for epsilon in EPSILONS), flush=True)


if __name__ == "__main__":
    main()
