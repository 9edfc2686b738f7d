"""One bit per rotated coordinate, all bits privatised together: SQKR and PrivUnit_∞, both with PrivQuant."""

from __future__ import annotations

import math
from bisect import bisect_left

from sqsgd._internal import checks
from sqsgd.core import Scheme
from sqsgd.core.transforms import rotated_sample
from sqsgd.mechanisms.privquant import MOST_DIM, PrivQuant
from sqsgd.schemes.budgets import affordable, checked_budget
from sqsgd.schemes.sqsgd_paper import BoundedRange


def best_size(epsilon: float, most: int) -> int:
    """The k up to ``most`` with the least error, which is proportional to M² / k.

    M = (e^ε + 2^k - 1) / (e^ε - 1). The logarithm is convex in k, so the best k is the first one that its
    successor does not improve.

    >>> best_size(400.0, 2048)
    567
    """

    def log_error(size: int) -> float:
        # ln (2^k - 1) / e^ε
        others = size * math.log(2) + math.log(-math.expm1(-size * math.log(2))) - epsilon
        return 2 * (max(others, 0.0) + math.log1p(math.exp(-abs(others)))) - math.log(size)

    return 1 + bisect_left(range(1, most), True, key=lambda size: log_error(size + 1) >= log_error(size))


def sqkr(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    reach: float = 3.0,
    size: int | None = None,
) -> Scheme:
    """SQKR (Chen, Kairouz and Özgür 2020): k rotated coordinates, one bit each, 2^k-ary randomised response.

    Randomised response over 2^k codes is PrivQuant with K = 2 and the threshold τ = k, which draws exactly.
    k is ``size``, by default the best within ``bytes``. Bits round a coordinate without bias over ± ``reach``
    times the root mean square of a vector as long as the bound (after Kashin's frame in the paper, the
    rotation here). Clamping shortens Gaussian coordinates by 0.3 % at a reach of 3.
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    reach = checks.real("reach", reach, 0.1, 20.0)
    most = affordable(min(bits or MOST_DIM, MOST_DIM), 2, dim)
    size = best_size(epsilon, most) if size is None else checks.integer("size", size, 1, most)
    mechanism = BoundedRange(quantizer=PrivQuant(size, 2, epsilon, threshold=size), reach=reach)
    return Scheme(name="sqkr", dim=dim, transforms=rotated_sample(dim, size), mechanism=mechanism)


def privunit_inf(dim: int, epsilon: float, bytes: int | None = None, *, reach: float = 3.0) -> Scheme:
    """PrivUnit_∞ (Bhowmick et al. 2018): a corner of the cube near the rounded input.

    It agrees in at least τ places with probability p: PrivQuant with K = 2, with the optimal τ and p.
    ``reach`` as in ``sqkr``. It sends as many coordinates as ``bytes`` hold or, for small ε (up to 4.7), the
    few of SQKR, all of which must match; no other number is better
    (tests/schemes/test_one_bit.py::test_no_other_number_of_coordinates_is_better).
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    reach = checks.real("reach", reach, 0.1, 20.0)
    most = affordable(min(bits or MOST_DIM, MOST_DIM), 2, dim)
    quantizers = (PrivQuant(size, 2, epsilon) for size in (most, best_size(epsilon, most)))
    quantizer = min(quantizers, key=lambda quantizer: 1 / (quantizer.dim * quantizer.scale**2))
    mechanism = BoundedRange(quantizer=quantizer, reach=reach)
    transforms = rotated_sample(dim, quantizer.dim)
    return Scheme(name="privunit-inf", dim=dim, transforms=transforms, mechanism=mechanism)
