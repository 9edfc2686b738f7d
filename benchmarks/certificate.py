"""Seconds of ``sqsgd.central_guarantee`` over its range: local ε from 0.1 to 12, 10 to 10^8 users.

    python benchmarks/certificate.py

Every row is a scheme, δ and a local ε; every cell is the central ε, the first letter of the bound and the
processor time. tests/privacy/test_certificate.py holds each cell of a smaller grid to two seconds.
"""

from __future__ import annotations

import itertools
import time

import sqsgd

USERS = (10, 100, 1500, 6000, 60_000, 10**6, 10**7, 10**8)
DELTAS = (1e-6, 1e-9)
LOCAL = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
SCHEMES = (
    ("privunit-index", {}),
    ("sqsgd-stateless", {"code": "sparse"}),
    ("sqsgd-stateless", {"code": "signs"}),  # two parts: the codes and the norm
    ("vqsgd", {}),  # the generic bound
)


def main() -> None:
    """Print the table and the slowest cell."""
    slowest = (0.0, "")
    for (name, options), delta, local in itertools.product(SCHEMES, DELTAS, LOCAL):
        scheme = sqsgd.make_scheme(name, dim=3920, epsilon=local, bytes=64, **options)
        cells = []
        for users in USERS:
            start = time.process_time()
            found = sqsgd.central_guarantee(scheme, users, delta)
            taken = time.process_time() - start
            cells.append(f"{found.epsilon:.4g} {found.bound[0]} {taken:.2f}s")
            slowest = max(
                slowest, (taken, f"{name} {options or ''} at {local:g}, {delta:g} with {users:,} users")
            )
        print(
            f"{name:16} {options.get('code', ''):7} {delta:g} {local:5g}",
            *(f"{cell:>18}" for cell in cells),
            flush=True,
        )
    print(f"slowest: {slowest[0]:.2f} s, {slowest[1]}")


if __name__ == "__main__":
    main()
