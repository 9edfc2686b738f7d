"""QSGD, TernGrad and DGC: what they send, how well, and what that leaks."""

import itertools
import math
import sys

import numpy as np
import pytest
from cases import task, unit_vector
from reference import g_test

from sqsgd import Aggregate, MalformedReport, Task, codec, make_scheme, seeded_rng
from sqsgd.schemes.dgc import Largest
from sqsgd.schemes.qsgd import ShareOfNorm
from sqsgd.schemes.terngrad import Ternary

X = np.array([0.6, -0.1, 0.35, 0.0], np.float32)
ROUNDED = [
    ShareOfNorm(dim=4, levels=1),
    ShareOfNorm(dim=4, levels=3),
    Ternary(dim=4),
    Ternary(dim=4, clip=1.2),
]


def all_reports(mechanism, x):
    """Every report that x can become: its scale is certain, its codes are not."""
    scale = mechanism.randomize(x, 1.0, seeded_rng(1))[0]
    alphabet = mechanism.layout[1].alphabet
    codes = itertools.product(range(alphabet), repeat=mechanism.dim)
    return [(scale, np.array(code, np.uint32)) for code in codes]


def chances(mechanism, x):
    return np.exp([mechanism.log_density(report, x, 1.0) for report in all_reports(mechanism, x)])


@pytest.mark.parametrize("mechanism", ROUNDED, ids=lambda m: m.identity)
def test_the_variance_is_the_closed_form(mechanism):
    """By listing all reports: the chances sum to one, the mean is x, the variance the formula's."""
    law = chances(mechanism, X)
    estimates = np.array([mechanism.estimate(report, 1.0) for report in all_reports(mechanism, X)])
    x, norm = X.astype(float), np.linalg.norm(X)
    if isinstance(mechanism, Ternary):
        limit = np.inf if mechanism.clip is None else np.float32(mechanism.clip * norm / 2)
        x = np.clip(x, -limit, limit)
        expected = np.sum(np.abs(x) * (np.abs(x).max() - np.abs(x)))
    else:
        part = mechanism.levels * np.abs(x) / norm % 1
        expected = np.sum((norm / mechanism.levels) ** 2 * part * (1 - part))
        assert expected <= min(4 / mechanism.levels**2, 2 / mechanism.levels) * norm**2
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert np.allclose(law @ estimates, x, atol=1e-7)
    assert law @ np.sum((estimates - x) ** 2, axis=1) == pytest.approx(expected, abs=1e-6)


def drawn(mechanism, x, trials):
    alphabet, rng, counts = mechanism.layout[1].alphabet, seeded_rng(5), {}
    for _ in range(trials):
        number = int("".join(map(str, mechanism.randomize(x, 1.0, rng)[1])), alphabet)
        counts[number] = counts.get(number, 0) + 1
    return np.array([counts.get(i, 0) for i in range(alphabet**mechanism.dim)])


@pytest.mark.parametrize("mechanism", ROUNDED, ids=lambda m: m.identity)
def test_what_is_sent_has_the_density(mechanism, monkeypatch):
    expected = 20_000 * chances(mechanism, X) + 1e-12
    assert g_test(drawn(mechanism, X, 20_000), expected) > 1e-6
    module = sys.modules[type(mechanism).__module__]
    monkeypatch.setattr(module, "round_unbiased", lambda position, rng: np.rint(position).astype(int))
    assert g_test(drawn(mechanism, X, 20_000), expected) < 1e-6


def test_what_leaks_of_a_vector():
    """Who reads a report of qsgd knows the norm; of terngrad signs and the maximum; of dgc values."""
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


def measured(scheme, reports):
    """|x̂ - x|² / |x|² of vectors of uniform direction: its mean and standard error."""
    rng, errors = seeded_rng(8), []
    for client in range(reports):
        x = unit_vector(scheme.dim, seed=client)
        t = Task(round=client, client=client, seed=3, dim=scheme.dim, bound=1.0)
        errors.append(np.sum((scheme.decode(scheme.encode(x, t, rng), t) - x) ** 2))
    return np.mean(errors), np.std(errors) / math.sqrt(reports)


@pytest.mark.parametrize(("name", "dim", "bits", "options"), PREDICTED)
def test_the_error_is_the_predicted_one(name, dim, bits, options):
    """The predictions are exact for uniform directions: three standard errors, and quadrature (0.2 %)."""
    scheme = make_scheme(name, dim=dim, bits=bits, **options)
    mean, deviation = measured(scheme, 3000)
    assert abs(mean - scheme.nmse) < 3 * deviation + 0.002 * scheme.nmse


@pytest.mark.parametrize(("dim", "bits", "model"), [(5000, None, 0.01), (1000, 200, 0.05)])
def test_the_error_with_clipping_is_about_the_predicted_one(dim, bits, model):
    """A sample's prediction takes the clamped part for noise: (2 - 2 erf(c/√2)) (dim / size - 1) too much."""
    scheme = make_scheme("terngrad", dim=dim, bits=bits, clip=2.5)
    mean, deviation = measured(scheme, 1500)
    assert abs(mean - scheme.nmse) < 3 * deviation + model * scheme.nmse
    assert scheme.nmse < make_scheme("terngrad", dim=dim, bits=bits).nmse


@pytest.mark.parametrize(("dim", "bits", "model"), [(300, 512, 0.01), (5000, 2048, 0.002), (64, 2048, 0.0)])
def test_the_error_of_the_largest_is_the_predicted_one(dim, bits, model):
    """The formula is that of many coordinates: 1 % off at 12 of 300."""
    scheme = make_scheme("dgc", dim=dim, bits=bits)
    mean, deviation = measured(scheme, 500)
    assert abs(mean - scheme.nmse) <= 3 * deviation + model


def test_no_other_number_of_levels_predicts_less():
    for dim, bits in ((300, 512), (119850, 2048), (64, 512)):
        best = make_scheme("qsgd", dim=dim, bits=bits).nmse
        others = [make_scheme("qsgd", dim=dim, bits=bits, levels=levels).nmse for levels in range(1, 120)]
        assert best <= 1.01 * min(others)


def test_without_a_budget_all_coordinates_travel():
    assert make_scheme("qsgd", dim=1000).mechanism == ShareOfNorm(dim=1000, levels=32)  # √n, rounded up
    assert make_scheme("terngrad", dim=1000).mechanism == Ternary(dim=1000)
    assert make_scheme("dgc", dim=2500).mechanism == Largest(dim=2500, count=3)  # the paper's 0.1 %


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "dgc"])
def test_huge_vectors_cost_nothing_before_they_are_sent(name):
    for bits in (2048, None):
        assert make_scheme(name, dim=2**31, bits=bits).dim == 2**31


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("qsgd", {"bits": 33}, "bits = 33 do not hold a norm and one code of levels = 1; at least 34 do"),
        ("qsgd", {"bits": 40, "levels": 500}, "bits = 40 .* levels = 500; at least 42 do"),
        ("qsgd", {"levels": 0}, "levels = 0"),
        ("qsgd", {"bits": 0}, "bits = 0"),
        ("terngrad", {"bits": 33}, "bits = 33 do not hold a scale and one code; at least 34 do"),
        ("terngrad", {"clip": 0.0}, r"clip = 0\.0"),
        ("dgc", {"bits": 38}, "bits = 38 do not hold one coordinate and its index; at least 39 do"),
        ("dgc", {"bits": 20, "dim": 1}, "bits = 20 do not hold one coordinate and its index; at least 32 do"),
        ("dgc", {"bits": 80, "count": 3}, "count = 3 must be a whole number from 1 to 2"),
        ("dgc", {"momentum": 1.0}, r"momentum = 1\.0"),
    ],
)
def test_budgets_that_cannot_be_met(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        make_scheme(name, **{"dim": 100, **arguments})


# ------------------------------------------------------------ the largest coordinates


@pytest.mark.parametrize("count", [1, 7, 299, 300])
def test_the_largest_coordinates_arrive_exactly(count):
    scheme = make_scheme("dgc", dim=300, count=count)
    x, t = unit_vector(300), task(scheme)
    message = scheme.encode(x, t, seeded_rng(1))
    chosen = np.sort(np.argsort(-np.abs(x))[:count])
    expected = np.zeros(300)
    expected[chosen] = x[chosen]
    assert np.array_equal(scheme.decode(message, t), expected)
    assert np.array_equal(scheme.mechanism.coordinates(scheme.open(message, t)), chosen)
    assert message == scheme.encode(x, t, seeded_rng(2))
    assert (scheme.residual, scheme.momentum) == ((True, 0.9) if count < 300 else (False, 0.0))


def test_of_equal_magnitudes_the_first_count():
    x = np.array([1, -2, 2, 1, -1, 2, 0, 1], np.float32)
    mechanism = Largest(dim=8, count=5)
    assert mechanism.randomize(x, 1.0, seeded_rng(1))[0].tolist() == [0, 1, 2, 3, 5]
    assert Largest(dim=8, count=2).randomize(0 * x, 1.0, seeded_rng(1))[0].tolist() == [0, 1]


@pytest.mark.parametrize("indices", [[3, 3, 5], [5, 3, 7]])
def test_a_report_that_names_a_coordinate_twice_is_refused(indices):
    scheme = make_scheme("dgc", dim=300, count=3)
    t = task(scheme)
    columns = (np.array(indices, np.uint32), np.ones(3, np.float32))
    forged = codec.seal(
        scheme.mechanism.layout, columns, scheme=scheme.fingerprint, round=t.round, binding=t.binding
    )
    total = Aggregate(scheme)
    total.add(t, scheme.encode(unit_vector(300), t, seeded_rng(1)))
    before = total.mean()
    for use in (lambda: scheme.decode(forged, t), lambda: total.add(t, forged)):
        with pytest.raises(MalformedReport, match="do not rise"):
            use()
    assert (total.count, total.mean().tolist()) == (1, before.tolist())


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "dgc"])
def test_the_mechanisms_refuse_what_is_not_finite(name):
    mechanism, rng = make_scheme(name, dim=50, bits=400).mechanism, seeded_rng(2)
    for bad in (np.nan, np.inf):
        x = np.zeros(mechanism.dim, np.float32)
        x[-1] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            mechanism.randomize(x, 1.0, rng)
    assert rng.word() == seeded_rng(2).word()
