"""Levels, coordinates and reach in direction mode: no other choice is better."""

import math

import pytest

from sqsgd.schemes.code_choice import LEVELS, REACHES, SIGNS, best_of, choices


@pytest.mark.parametrize("epsilon", [2.0, 40.0, 400.0, 4000.0])
@pytest.mark.parametrize(("dim", "bits"), [(300, 4096), (119850, 2048), (5000, 700)])
def test_no_other_choice_is_better(dim, epsilon, bits):
    best = best_of(choices(dim, epsilon, bits)).error
    for levels in (*LEVELS, 7, 10, 100):
        for reach in (*REACHES, SIGNS, 0.3, 1.2):
            for coordinates in (64, 100, 256, 300, 600):
                if coordinates * math.log2(levels) > 0.97 * bits or coordinates > dim:
                    continue
                fixed = {"levels": (levels,), "reach": reach, "coordinates": coordinates}
                other = best_of(choices(dim, epsilon, bits, **fixed))
                assert other.error > 0.98 * best, other


def test_the_table_of_mathematics_is_reproduced():
    """Computed independently for D = 2^17 and a known norm: 401, 305, 282 and 268 for 512 to 8192 bits."""
    for bits, nmse in ((512, 401), (1024, 305), (2048, 282), (8192, 268)):
        assert abs(best_of(choices(2**17, 400.0, bits)).error - 1 - nmse) < 0.6
