"""What a budget per record buys in a federation: noise, bytes and error, also with a trusted server."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from sqsgd._internal import checks
from sqsgd.core import Scheme
from sqsgd.schemes import make_scheme
from sqsgd.schemes.sqsgd_record import silo_options


@dataclass(frozen=True, kw_only=True)
class Batching:
    """A way to draw batches for the same budget: the noise of a silo's report, and of the mean of all."""

    name: str
    share: float
    """Of its records that a silo draws for a report."""
    deviation: float
    """σ / C: the noise of each coordinate of a silo's sum, over the norm that records are clipped to."""
    error: float
    """The noise of a coordinate of the mean gradient, over C."""
    trusted: float
    """The same if a trusted server, or secure aggregation, adds the noise once."""


@dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """A run with a guarantee per record. Made by ``record_plan``."""

    dim: int
    records: int
    silos: int
    epsilon: float
    delta: float
    rounds: int
    message_bytes: int
    bits: float
    """Of a coordinate in a message."""
    batchings: tuple[Batching, ...]
    """The default first."""
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def record_plan(
    *, dim: int, records: int, silos: int, epsilon: float, delta: float, rounds: int, bytes: int | None = None
) -> RecordPlan:
    """Return the noise for ``rounds`` reports of each silo that are (epsilon, delta)-private for each record.

    ``records``: of all silos together, each of which holds about as many and reports in each round.
    ``bytes``: the budget for a message; None: the whole vector on 32 levels.

    >>> plan = record_plan(dim=3920, records=60_000, silos=10, epsilon=1.0, delta=1e-5, rounds=200)
    >>> plan.batchings[0].name, round(plan.batchings[0].deviation, 1), plan.message_bytes
    ('poisson', 2.8, 2569)
    """
    checks.integer("silos", silos, 1, 2**31)
    checks.integer("records", records, silos, 2**40)
    each, found, schemes = records / silos, list[Batching](), list[Scheme]()
    for name, batching, share in (
        ("poisson", "poisson", 0.0), ("disjoint", "disjoint", 0.0), ("every record", "poisson", 1.0)
    ):  # fmt: skip
        options = silo_options(epsilon, delta, rounds, each, share=share, batching=batching)
        schemes.append(make_scheme("sqsgd-record", dim=dim, epsilon=epsilon, bytes=bytes, **options))
        privacy = schemes[-1].privacy
        deviation = math.sqrt(1 / (2 * float(privacy.rho)))
        error = deviation / (each * privacy.share) / math.sqrt(silos)
        noise = {"deviation": deviation, "error": error, "trusted": error / math.sqrt(silos)}
        found.append(Batching(name=name, share=privacy.share, **noise))
    found[1:], chosen = sorted(found[1:], key=lambda batching: batching.error), schemes[0]
    return RecordPlan(
        dim=dim,
        records=records,
        silos=silos,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        message_bytes=chosen.bits // 8,
        bits=8 * (chosen.bits // 8) / dim,
        batchings=tuple(found),
        warnings=tuple(record_warnings(each, each * chosen.privacy.share, delta)),
    )


def record_warnings(each: float, batch: float, delta: float) -> list[str]:
    """Sentences about a δ that is too large for so many records of a silo, and about very small batches."""
    found = []
    if delta >= 1 / each:
        found.append(
            f"delta = {delta:g} is not below 1 / {each:,.0f}, for the records of a silo: with this chance a "
            "report may give away one of them entirely. Choose a smaller delta."
        )
    if batch < 1:
        found.append(
            f"a silo of {each:,.0f} records draws {batch:.2g} of them on average, so most reports are noise "
            "alone: choose a larger sampling, or fewer rounds."
        )
    return found
