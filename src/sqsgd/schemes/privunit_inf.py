"""PrivUnit_∞ (Bhowmick et al. 2018): one bit per coordinate of a vector in a cube, privatised together."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.mechanisms.privquant import MOST_DIM, PrivQuant
from sqsgd.schemes._bit_budget import affordable, checked_budget
from sqsgd.schemes.sqkr import best_size
from sqsgd.schemes.sqsgd_paper import BoundedRange
from sqsgd.transforms import rotated_sample


def privunit_inf(dim: int, epsilon: float, bits: int | None = None, *, reach: float = 3.0) -> Scheme:
    """Rotated coordinates to one bit each, by PrivQuant with two levels.

    PrivUnit_∞ draws a corner of the cube that agrees with the rounded input in at least τ places with
    probability p, which is PrivQuant with K = 2; τ and p are optimal here. Coordinates are
    clamped to ± ``reach`` times the root mean square of a vector as long as the bound, which shortens
    Gaussian coordinates by 0.3 % at a reach of 3. It sends as many as the budget holds or, for small ε (up to
    4.7), the few of SQKR, all of which must match; no other number is better
    (tests/schemes/test_privunit_inf.py::test_no_other_number_of_coordinates_is_better).
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bits)
    reach = checks.real("reach", reach, 0.1, 20.0)
    most = affordable(min(bits or MOST_DIM, MOST_DIM), 2, dim)
    quantizers = (PrivQuant(size, 2, epsilon) for size in (most, best_size(epsilon, most)))
    quantizer = min(quantizers, key=lambda each: 1 / (each.dim * each.scale**2))
    mechanism = BoundedRange(quantizer=quantizer, reach=reach)
    transforms = rotated_sample(dim, quantizer.dim)
    return Scheme(name="privunit-inf", dim=dim, transforms=transforms, mechanism=mechanism)
