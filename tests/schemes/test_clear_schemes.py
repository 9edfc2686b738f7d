"""FedSGD, QSGD, TernGrad and DGC: their reports, variances and leaks."""

import itertools
import sys

import numpy as np
import pytest
from cases import task, unit_vector
from reference import g_test

from sqsgd import Aggregate, MalformedReport, Task, make_scheme, seeded_rng
from sqsgd.core import codec
from sqsgd.schemes.clear import Largest, ShareOfNorm, Ternary

X = np.array([0.6, -0.1, 0.35, 0.0], np.float32)


def all_reports(mechanism, x):
    """Every possible report of x: its scale is certain, its codes are not."""
    scale = mechanism.randomize(x, 1.0, seeded_rng(1))[0]
    alphabet = mechanism.layout[1].alphabet
    codes = itertools.product(range(alphabet), repeat=mechanism.dim)
    return [(scale, np.array(code, np.uint32)) for code in codes]


def chances(mechanism, x):
    return np.exp([mechanism.log_density(report, x, 1.0) for report in all_reports(mechanism, x)])


def drawn(mechanism, x, trials):
    alphabet, rng, counts = mechanism.layout[1].alphabet, seeded_rng(5), {}
    for _ in range(trials):
        number = int("".join(map(str, mechanism.randomize(x, 1.0, rng)[1])), alphabet)
        counts[number] = counts.get(number, 0) + 1
    return np.array([counts.get(i, 0) for i in range(alphabet**mechanism.dim)])


def is_sent_with_its_density(mechanism, trials=6_000):
    """``randomize`` against ``log_density``, by a G-test."""
    return g_test(drawn(mechanism, X, trials), trials * chances(mechanism, X) + 1e-12) > 1e-6


ROUNDED = [
    ShareOfNorm(dim=4, levels=1), ShareOfNorm(dim=4, levels=3), Ternary(dim=4),
]  # fmt: skip


@pytest.mark.parametrize("mechanism", ROUNDED, ids=lambda m: m.identity)
def test_what_is_sent_has_the_density(mechanism, monkeypatch):
    assert is_sent_with_its_density(mechanism)
    module = sys.modules[ShareOfNorm.__module__]
    monkeypatch.setattr(module, "round_unbiased", lambda position, rng: np.rint(position).astype(int))
    assert not is_sent_with_its_density(mechanism)


def test_without_a_budget_all_coordinates_are_sent():
    assert make_scheme("qsgd", dim=1000).mechanism == ShareOfNorm(dim=1000, levels=32)  # √n, rounded up
    assert make_scheme("terngrad", dim=1000).mechanism == Ternary(dim=1000)
    assert make_scheme("dgc", dim=2500).mechanism == Largest(dim=2500, count=3)  # the paper's 0.1 %


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
    ties = np.array([1, -2, 2, 1, -1, 2, 0, 1], np.float32)
    assert Largest(dim=8, count=5).randomize(ties, 1.0, seeded_rng(1))[0].tolist() == [0, 1, 2, 3, 5]
    assert (scheme.keeps_state, scheme.momentum) == ((True, 0.9) if count < 300 else (False, 0.0))


@pytest.mark.parametrize("indices", [[3, 3, 5], [5, 3, 7]])
def test_a_report_that_names_a_coordinate_twice_is_refused(indices):
    scheme = make_scheme("dgc", dim=300, count=3)
    t = task(scheme)
    columns = (np.array(indices, np.uint32), np.ones(3, np.float32))
    forged = codec.seal(scheme.mechanism.layout, columns, scheme=scheme.fingerprint, binding=t.binding)
    total = Aggregate(scheme)
    total.add(t, scheme.encode(unit_vector(300), t, seeded_rng(1)))
    before = total.mean()
    for use in (lambda: scheme.decode(forged, t), lambda: total.add(t, forged)):
        with pytest.raises(MalformedReport, match="do not rise"):
            use()
    assert (total.count, total.mean().tolist()) == (1, before.tolist())


def test_every_bit_arrives():
    """Including subnormal numbers and the sign of zero, for every bound."""
    x = np.array([1e-45, -0.0, 0.1, -1e13, 3e-39, 1.0], np.float32)
    scheme, task = make_scheme("fedsgd", dim=6), Task(round=0, client=0, seed=0, dim=6, bound=1e-3)
    message = scheme.encode(x, task, seeded_rng(1))
    assert scheme.decode(message, task).astype(np.float32).tobytes() == x.tobytes()
    assert message == scheme.encode(x, task, seeded_rng(2))
    assert scheme.nmse == 0.0
