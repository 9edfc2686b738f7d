"""LDP-FL (Sun, Qian and Chen, IJCAI 2021): Duchi's bit for each sent weight."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.mechanisms.ordinal import OrdinalChannel
from sqsgd.schemes.bit_budget import rescaled_sample
from sqsgd.schemes.coordinatewise import EachCoordinate, rotated_coordinates


def ldp_fl(
    dim: int,
    epsilon: float,
    bits: int | None = None,
    *,
    coordinates: int | None = None,
    per_weight: bool = False,
    reach: float = 3.0,
) -> Scheme:
    """A bit for each of k rotated coordinates: ± r M, M = (e^{ε/k} + 1) / (e^{ε/k} - 1), mean the coordinate.

    k is the number with the least predicted error, about ε / 2.2, or ``coordinates``. The centre c is 0
    and r = ``reach`` C / √D for all coordinates, both public (the paper's c and r of a layer are not).
    ``per_weight`` is the paper's reading: ε for every sent weight, weights as they are (a rotation would
    spread one weight over all bits), as many as ``bits`` hold.

    Guarantees
    ----------
    * ε-LDP of the whole report as implemented: OrdinalChannel with two levels draws exactly.
      tests/schemes/test_privacy.py::test_exact_privacy.
    * With ``per_weight``, ε between vectors that differ in one weight, and k ε for the whole vector:
      tests/schemes/test_ldp_fl.py::test_per_weight. The paper's splitting and shuffling of reports hides
      nothing from a server that sees who sends; it is no part of this.
    * Biased by clamping to the range alone (see ``EachCoordinate``):
      tests/schemes/test_estimates.py::test_mean_is_recovered.

    >>> scheme = ldp_fl(119850, 400.0, 2048)
    >>> scheme.mechanism.dim, round(scheme.nmse)
    (184, 9260)
    """
    dim = checks.integer("dim", dim, 1, 2**31)
    epsilon = checks.real("epsilon", epsilon, 0.01, 1e5)
    reach = checks.real("reach", reach, 0.1, 1e5)
    if per_weight:
        most = dim if bits is None else min(dim, checks.integer("bits", bits, 1, 2**40))
        size = most if coordinates is None else checks.integer("coordinates", coordinates, 1, most)
        mechanism = EachCoordinate(
            dim=size, channel=OrdinalChannel(2, epsilon), reach=reach, notion="per-weight"
        )
        return Scheme(name="ldp-fl", dim=dim, transforms=rescaled_sample(dim, size), mechanism=mechanism)
    return rotated_coordinates(
        "ldp-fl", OrdinalChannel, (2,),
        dim=dim, epsilon=epsilon, bits=bits, coordinates=coordinates, reach=reach,
    )  # fmt: skip
