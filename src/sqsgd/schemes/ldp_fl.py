"""LDP-FL (Sun, Qian and Chen, IJCAI 2021): Duchi's bit for each sent weight."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.mechanisms.ordinal import OrdinalChannel
from sqsgd.schemes._bit_budget import checked_budget, rescaled_sample
from sqsgd.schemes._coordinatewise import EachCoordinate, rotated_coordinates


def ldp_fl(
    dim: int,
    epsilon: float,
    bits: int | None = None,
    *,
    coordinates: int | None = None,
    per_weight: bool = False,
    reach: float = 3.0,
) -> Scheme:
    """One unbiased bit for each of k rotated coordinates: ± r M, M = (e^{ε/k} + 1) / (e^{ε/k} - 1).

    k is ``coordinates``, by default the number of the least predicted error, about ε / 2.2. The centre c is
    0 and r = ``reach`` C / √D for all coordinates; both are public (the paper's c and r of a layer are not).
    ``per_weight`` is the paper's reading: ε for every sent weight, without a rotation, which would spread
    one weight over all bits; as many weights as ``bits`` hold.

    Guarantees
    ----------
    * ε-LDP of the whole report as implemented: OrdinalChannel with two levels draws exactly.
      tests/schemes/test_privacy.py::test_exact_privacy.
    * With ``per_weight``, ε between vectors that differ in one weight, and k ε for the whole vector:
      tests/schemes/test_ldp_fl.py::test_per_weight. The paper's splitting and shuffling of reports hides
      nothing from a server that sees the senders; it is left out.
    * Biased only by clamping to the range (see ``EachCoordinate``):
      tests/schemes/test_estimates.py::test_mean_is_recovered.

    >>> scheme = ldp_fl(119850, 400.0, 2048)
    >>> scheme.mechanism.dim, round(scheme.nmse)
    (184, 9260)
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bits)
    reach = checks.real("reach", reach, 0.1, 1e5)
    if per_weight:
        most = dim if bits is None else min(dim, bits)
        size = most if coordinates is None else checks.integer("coordinates", coordinates, 1, most)
        mechanism = EachCoordinate(
            dim=size, channel=OrdinalChannel(2, epsilon), reach=reach, notion="per-weight"
        )
        return Scheme(name="ldp-fl", dim=dim, transforms=rescaled_sample(dim, size), mechanism=mechanism)
    return rotated_coordinates(
        "ldp-fl", OrdinalChannel, (2,),
        dim=dim, epsilon=epsilon, bits=bits, coordinates=coordinates, reach=reach,
    )  # fmt: skip
