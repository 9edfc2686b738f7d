"""Invalid names, budgets and options raise a ValueError that names the argument and its value."""

import pytest
from refusing import refuse

from sqsgd import make_scheme


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("sqsdg", {}, "did you mean 'sqsgd'"),
        ("sqsgd", {"bytes": 0}, "bits = 0"),
        ("sqsgd", {"bits": None}, "bits = None"),
        ("sqsgd", {"bytes": 1.5}, r"bits = 1\.5"),
        ("sqsgd", {"epsilon": None}, "epsilon = None"),
        ("sqsgd", {"epsilon": 0.001}, r"epsilon = 0\.001"),
        ("sqsgd", {"epsilon": 1e6}, "epsilon = 1000000"),
        ("sqsgd", {"dim": 0}, "dim = 0"),
        ("sqsgd", {"norm_epsilon": 500.0}, "norm_epsilon = 500"),
        ("sqsgd", {"norm_epsilon": 1e-9}, "norm_epsilon = 1e-09"),
        ("sqsgd", {"dim": 2**26, "bytes": 1**26, "code": "signs"}, "bits = 67108864 would send"),
        (["sqsgd"], {}, r"name = \['sqsgd'\]"),
        ("sqsgd", {"colour": "red"}, "colour = 'red': 'sqsgd' has no such option"),
        ("sqsgd", {"levels": 256, "bytes": 1}, "bits = 4 cannot hold one code"),
        ("sqsgd-paper", {"epsilon": 5.0, "adaptive": True}, "norm_epsilon = 10"),
        ("fedsgd", {"levels": 2}, "options: none"),
    ],
)
def test_make_scheme(name, arguments, match):
    refuse(match, lambda: make_scheme(name, **{"dim": 100, "epsilon": 100.0, "bytes": 8, **arguments}))
