"""What a training can be expected to learn, said before it begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from sqsgd.codec import SignedSubset
from sqsgd.core import Scheme
from sqsgd.node.structure import Structure, is_statistic
from sqsgd.numerics.epsilon_sums import add_up, total

_UNHEARD = 0.1
_DROWNED = 100.0


def outlook(
    scheme: Scheme, clients: int, rounds: int, evaluations: tuple[int, float] = (0, 0.0)
) -> Iterator[tuple[int, str]]:
    """Lines for the log, with their levels: what reports hold, what they cost, and if the rounds suffice.

    ``clients``: reports per round; ``evaluations``: how many a node may answer, and what each costs. Warns
    if a tenth of the weights or more will not be heard of, or if all reports together are mostly noise: the
    error of their mean is then more than 100 times the change that they describe. In
    docs/flower.md#what-a-quickstart-learns, 197 times taught nothing and 59 something.
    """
    dim, epsilon = f"{scheme.dim:,}", scheme.privacy.epsilon
    heard = min(1.0, scheme.mechanism.dim / scheme.dim)  # the share of weights that a report is about
    yield logging.INFO, f"scheme {scheme.name}: a report of {scheme.bits // 8} bytes {_content(scheme)}"
    if heard == 1.0:
        yield logging.INFO, f"each of the {dim} weights is heard in every round"
    else:
        mean = f"with {clients} reports per round a weight is heard every {1 / heard / clients:.1f} rounds"
        needed = _rounds(1 / scheme.dim, heard, clients)
        yield logging.INFO, f"{mean} on average, and each of {dim} once after about {needed} rounds"
    if scheme.privacy.is_private:
        count, price = evaluations
        asked, more = "", ""
        if count and price:
            asked, more = f" and {price:g} per evaluation", f" and {count} evaluations"
        spent = add_up(total(epsilon, rounds), total(price, count))
        answers = f"a node that answers all {rounds} rounds{more} spends {spent:g} in total"
        yield logging.INFO, f"epsilon {epsilon:g} per report{asked}: {answers}"
    if not rounds:
        return
    few = f"{rounds} rounds cannot suffice:"
    unheard = (1 - heard) ** (clients * rounds)
    if unheard >= _UNHEARD:
        needed = _rounds(_UNHEARD, heard, clients)
        instead = f"use {needed} rounds or more, more nodes, or scheme = 'sqsgd-stateless'"
        yield logging.WARNING, f"{few} {100 * unheard:.0f} % of the weights will never be heard; {instead}"
    error = scheme.nmse if heard == 1.0 else (1 + scheme.nmse) / heard - 1
    if not scheme.follows_norms and error > _DROWNED * clients * rounds:
        reports = f"{clients * rounds} reports of epsilon {epsilon:g} are mostly noise"
        needed = math.ceil(error / _DROWNED / clients)
        instead = f"use {needed} rounds or more, more nodes, or a larger epsilon"
        yield logging.WARNING, f"{few} {reports}; {instead}"


def _rounds(unheard: float, heard: float, clients: int) -> int:
    """Rounds after which this share of the weights is expected to be unheard."""
    return math.ceil(math.log(unheard) / math.log1p(-heard) / clients)


def _content(scheme: Scheme) -> str:
    mechanism, dim = scheme.mechanism, f"{scheme.dim:,}"
    whole = "the whole update" if mechanism.dim >= scheme.dim else f"{mechanism.dim:,} of {dim} weights"
    if isinstance(codes := mechanism.layout[0], SignedSubset):
        return f"holds {codes.count} signed coordinates of {whole}, rotated"
    return f"is about {whole}"


def untrained(structure: Structure) -> Iterator[str]:
    """Which arrays are not trained, or not by descent, and what becomes of them."""
    measured = [name for name in structure.order if is_statistic(name)]
    others = [name for name in structure.constants if name not in measured]
    if others:
        yield f"arrays without floats are not trained, and stay as they are: {_listed(others)}"
    if measured:
        yield (
            f"the model has running statistics: {_listed(measured)}. They are reported among the weights, "
            "with the same noise; counts of batches stay as they are. A layer without them, such as "
            "GroupNorm, needs no such report: docs/flower.md"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
