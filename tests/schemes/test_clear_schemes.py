"""QSGD, TernGrad and DGC: their reports, errors and leaks."""

import sys

import numpy as np
import pytest
from cases import unit_vector
from clear import is_sent_with_its_density, measured

from sqsgd import make_scheme, seeded_rng
from sqsgd.schemes.dgc import Largest
from sqsgd.schemes.qsgd import ShareOfNorm
from sqsgd.schemes.terngrad import Ternary


def test_what_leaks_of_a_vector():
    """A report of qsgd reveals the norm, of terngrad signs and the maximum, of dgc values."""
    x = unit_vector(300)
    norm, codes = ShareOfNorm(dim=300, levels=100).randomize(x, 1.0, seeded_rng(1))
    assert norm[0] == pytest.approx(np.linalg.norm(x), rel=1e-6)
    assert np.abs((codes - 100.0) / 100 * norm[0] - x).max() <= norm[0] / 100
    scale, codes = Ternary(dim=300).randomize(x, 1.0, seeded_rng(1))
    assert scale[0] == np.abs(x).max()
    sent = codes != 1
    assert np.array_equal(np.sign(x[sent]), codes[sent] - 1.0)
    chosen, values = Largest(dim=300, count=9).randomize(x, 1.0, seeded_rng(1))
    assert np.array_equal(values, x[chosen])
    assert np.abs(x[chosen]).min() > np.abs(np.delete(x, chosen)).max()


ROUNDED = [
    ShareOfNorm(dim=4, levels=1), ShareOfNorm(dim=4, levels=3), Ternary(dim=4), Ternary(dim=4, clip=1.2),
]  # fmt: skip


@pytest.mark.parametrize("mechanism", ROUNDED, ids=lambda m: m.identity)
def test_what_is_sent_has_the_density(mechanism, monkeypatch):
    assert is_sent_with_its_density(mechanism)
    module = sys.modules[ShareOfNorm.__module__]
    monkeypatch.setattr(module, "round_unbiased", lambda position, rng: np.rint(position).astype(int))
    assert not is_sent_with_its_density(mechanism)


PREDICTED = [
    ("qsgd", 300, 512, {}),
    ("qsgd", 300, 512, {"levels": 1}),
    ("qsgd", 300, None, {}),
    ("qsgd", 7, 60, {"levels": 2}),
    ("qsgd", 5000, 2048, {}),
    ("terngrad", 300, 512, {}),
    ("terngrad", 300, 128, {}),
    ("terngrad", 5, None, {}),
    ("terngrad", 5000, 2048, {}),
]


@pytest.mark.parametrize(("name", "dim", "bits", "options"), PREDICTED)
def test_the_error_is_the_predicted_one(name, dim, bits, options):
    """The predictions are exact for uniform directions: three standard errors, and quadrature (0.2 %)."""
    scheme = make_scheme(name, dim=dim, bits=bits, **options)
    mean, deviation = measured(scheme, 3000)
    assert abs(mean - scheme.nmse) < 3 * deviation + 0.002 * scheme.nmse


def test_without_a_budget_all_coordinates_are_sent():
    assert make_scheme("qsgd", dim=1000).mechanism == ShareOfNorm(dim=1000, levels=32)  # √n, rounded up
    assert make_scheme("terngrad", dim=1000).mechanism == Ternary(dim=1000)
    assert make_scheme("dgc", dim=2500).mechanism == Largest(dim=2500, count=3)  # the paper's 0.1 %


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "dgc"])
def test_schemes_for_huge_vectors_are_made_quickly(name):
    for bits in (2048, None):
        assert make_scheme(name, dim=2**31, bits=bits).dim == 2**31


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "qsgd",
            {"bytes": 5},
            "bits = 33 cannot hold a norm and one code of levels = 1; at least 34 are needed",
        ),
        ("qsgd", {"bytes": 5, "levels": 500}, "bits = 40 .* levels = 500; at least 42 are needed"),
        ("qsgd", {"levels": 0}, "levels = 0"),
        ("qsgd", {"bytes": 0}, "bits = 0"),
        ("terngrad", {"bytes": 5}, "bits = 33 cannot hold a scale and one code; at least 34 are needed"),
        ("terngrad", {"clip": 0.0}, r"clip = 0\.0"),
        ("dgc", {"bytes": 5}, "bits = 38 cannot hold one coordinate and its index; at least 39 are needed"),
        (
            "dgc",
            {"bytes": 3, "dim": 1},
            "bits = 20 cannot hold one coordinate and its index; at least 32 are needed",
        ),
        ("dgc", {"bytes": 10, "count": 3}, "count = 3 must be a whole number from 1 to 2"),
        ("dgc", {"momentum": 1.0}, r"momentum = 1\.0"),
    ],
)
def test_budgets_that_cannot_be_met(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        make_scheme(name, **{"dim": 100, **arguments})


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "dgc"])
def test_the_mechanisms_reject_vectors_that_are_not_finite(name):
    mechanism, rng = make_scheme(name, dim=50, bytes=50).mechanism, seeded_rng(2)
    for bad in (np.nan, np.inf):
        x = np.zeros(mechanism.dim, np.float32)
        x[-1] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            mechanism.randomize(x, 1.0, rng)
    assert rng.word() == seeded_rng(2).word()
