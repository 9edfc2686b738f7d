"""sqSGD per record: a silo's report hides each of its records, from the server too."""

import math
from typing import Any

from sqsgd._internal import checks
from sqsgd.core import Scheme, Transform
from sqsgd.core.codec import Column
from sqsgd.core.transforms import Subsample, padded
from sqsgd.mechanisms.discrete_gaussian import RecordNoise, grid_error, square_for
from sqsgd.mechanisms.gaussian_account import LEAST_EPSILON, MOST_EPSILON, most_rho, rho_for
from sqsgd.schemes.budgets import optional_bits, too_few_bytes

BATCHINGS = ("poisson", "disjoint")
_LEVELS = (32, 16, 8, 4)
_SCALE_BITS = 32


def sqsgd_record(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    delta: float = 1e-5,
    reports: int = 1,
    rate: float = 1.0,
    batching: str = "poisson",
    records: float = 1.0,
    levels: int | None = None,
) -> Scheme:
    """Sends a sum of clipped records with exact discrete Gaussian noise: (``epsilon``, ``delta``) per record.

    The guarantee covers all ``reports`` of a run and refers to adding or removing one record of a silo. With
    ``batching = "poisson"``, each report uses each record with probability ``rate``. With ``"disjoint"``, the
    records are divided into disjoint batches of this size, which are used in turn. The selection of records
    is kept secret by the silo. The sums are divided by the public number ``records``, for example the
    expected batch size. The actual number of records is never sent.

    By default, noisy coordinates are rounded to 32 ``levels``, which increases the noise by 1 to 2 %. If the
    budget of ``bytes`` is smaller, the number of levels is reduced first. If this is not sufficient, reports
    only cover a block of coordinates that is shared by all silos.
    """
    dim = checks.integer("dim", dim, 1, 2**31)
    epsilon = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)  # beyond that of the least noise
    delta = checks.real("delta", delta, 1e-30, 0.1)
    reports = checks.integer("reports", reports, 1, 10**7)
    rate = checks.real("rate", rate, 1e-6, 1.0)
    records = checks.real("records", records, 1e-6, 2.0**40)
    if batching not in BATCHINGS:
        raise ValueError(f"batching = {batching!r} must be one of {', '.join(BATCHINGS)}")
    chance, turns = (rate, 1) if batching == "poisson" else (1.0, max(1, round(1 / rate)))
    square = square_for(rho_for(epsilon, delta, -(-reports // turns), chance))
    size, levels = _size(dim, optional_bits(bytes), levels)
    mechanism = RecordNoise(
        dim=size,
        square=square,
        levels=levels,
        records=records,
        epsilon=epsilon,
        delta=delta,
        reports=reports,
        rate=chance,
        turns=turns,
    )
    transforms: tuple[Transform, ...] = () if size == dim else (Subsample(size=size, shared=True),)
    return Scheme(name="sqsgd-record", dim=dim, transforms=transforms, mechanism=mechanism)


def silo_options(
    epsilon: float,
    delta: float,
    rounds: int,
    records: float,
    *,
    share: float = 0.0,
    batching: str = "poisson",
) -> dict[str, Any]:
    """The scheme's options for ``rounds`` reports of a silo of about ``records``; share 0: the least."""
    rate = share or record_share(epsilon, delta, rounds)
    batch = max(1.0, rate * records)
    return {"delta": delta, "reports": rounds, "rate": rate, "batching": batching, "records": batch}


def options_of(scheme: Scheme) -> dict[str, Any]:
    """The options that make a scheme per record again, with its dim, its ε and the bytes of its codes."""
    privacy, mechanism, taking_turns = scheme.privacy, scheme.mechanism, scheme.privacy.turns > 1
    return {
        "delta": privacy.delta,
        "reports": privacy.reports,
        "rate": privacy.share,
        "batching": BATCHINGS[taking_turns],
        "records": mechanism.traits.records,
        "levels": mechanism.layout[0].alphabet,
    }


def record_share(epsilon: float, delta: float, reports: int) -> float:
    """Return the least share of its records that a silo need draw for a report, in hundredths.

    T reports of a share q have about the noise √T / μ of reports of all records, as long as σ / L is about
    2.5 or more: q = μ / (0.4 √T). A smaller share takes less time, but more noise.
    """
    mu = math.sqrt(2 * most_rho(epsilon, delta))
    return min(1.0, math.ceil(100 * mu / (0.4 * math.sqrt(reports))) / 100)


def _size(dim: int, bits: int | None, levels: int | None) -> tuple[int, int]:
    """Coordinates and levels with the least noise for each coordinate and visit, within the budget."""
    if levels is not None:
        checks.integer("levels", levels, 2, 2**16)
    tried = _LEVELS if levels is None else (levels,)
    sizes = [dim, *(1 << power for power in reversed(range(padded(dim).bit_length() - 1)))]
    found = []
    for count in tried:
        for size in sizes:
            if bits is None or Column(padded(size), count).bits + _SCALE_BITS <= bits:
                found.append((grid_error(padded(size), count) * dim / size, size, count))
                break
    if not found:
        raise too_few_bytes(bits, "one coordinate and the scale", Column(1, tried[-1]).bits + _SCALE_BITS)
    _, size, count = min(found)
    return size, count
