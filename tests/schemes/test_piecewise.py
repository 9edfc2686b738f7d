"""The Piecewise Mechanism for vectors: the number of coordinates, and invalid arguments."""

import pytest

from sqsgd.schemes.piecewise import piecewise


def test_algorithm_4():
    """k = max(1, min(d, ⌊ε / 2.5⌋)), or as many as the bits hold."""
    sizes = [
        piecewise(dim, epsilon, bits, rule="paper").mechanism.dim
        for dim, epsilon, bits in [
            (1, 9.0, 40),
            (300, 2.4, 512),
            (300, 120.0, 512),
            (20, 120.0, 512),
            (300, 120.0, 30),
        ]
    ]
    assert sizes == [1, 1, 48, 20, 30]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bytes": 0}, "bits = 0"),
        (
            {"bytes": 2, "levels": 1024},
            "bits = 9 cannot hold coordinates = 1 of levels = 1024; at least 10 are needed",
        ),
        ({"bytes": 13, "coordinates": 200}, "at least 200 are needed"),
        ({"coordinates": 600}, "coordinates = 600"),
        ({"rule": "best"}, "rule = 'best'"),
        ({"rule": "paper", "coordinates": 3}, "coordinates = 3"),
        ({"epsilon": 1e-4, "coordinates": 500}, "epsilon"),
        ({"reach": 0.0}, "reach"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        piecewise(**{"dim": 300, "epsilon": 40.0, "bytes": 64, **options})
