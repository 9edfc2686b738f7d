"""LDP-Fed (Truex et al., EdgeSys 2020): the ordinal exponential mechanism on each sent coordinate."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.mechanisms.ordinal import MOST_LEVELS, OrdinalChannel
from sqsgd.schemes._bit_budget import checked_budget
from sqsgd.schemes._coordinatewise import rotated_coordinates

_LEVELS = tuple(range(2, 33))


def ldp_fed(
    dim: int,
    epsilon: float,
    bits: int | None = None,
    *,
    coordinates: int | None = None,
    levels: int | None = None,
    reach: float = 3.0,
) -> Scheme:
    """k rotated coordinates at ε / k each: rounded to levels 0..L, moved by P(y | v) ∝ e^{-α|v - y|/2}.

    k and the number of levels are those of the least predicted error; ``coordinates`` and ``levels`` fix
    them. α is 2 ε / (k L), twice what the paper's bound ε = α L for each coordinate allows. The paper's
    condensed α, from Gursoy's matching of posteriors, is a heuristic and not LDP, so it is left out. Its
    server averages the codes, which biases the mean towards the centre; ours corrects that.

    Guarantees
    ----------
    * ε-LDP of the whole report as implemented: OrdinalChannel draws exactly.
      tests/schemes/test_privacy.py::test_exact_privacy.
    * Biased only by clamping to the range (see ``EachCoordinate``):
      tests/schemes/test_estimates.py::test_mean_is_recovered.

    >>> scheme = ldp_fed(119850, 400.0, 2048)
    >>> scheme.mechanism.dim, scheme.mechanism.channel.alphabet, round(scheme.nmse)
    (52, 7, 4989)
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bits)
    reach = checks.real("reach", reach, 0.1, 1e5)
    alphabets = _LEVELS if levels is None else (checks.integer("levels", levels, 2, MOST_LEVELS),)
    return rotated_coordinates(
        "ldp-fed", OrdinalChannel, alphabets,
        dim=dim, epsilon=epsilon, bits=bits, coordinates=coordinates, reach=reach,
    )  # fmt: skip
