"""The densities that mechanisms state for the certificate are those of their reports."""

import itertools
import math

import numpy as np
import pytest

from sqsgd import make_scheme
from sqsgd.codec import Column
from sqsgd.numerics import exact
from sqsgd.privacy.blanket import blanket_bound
from sqsgd.schemes import SCHEMES

TINY = [
    ("privunit-index", {"dim": 4, "nearest": 2}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 1, "code": "sparse"}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 1, "code": "sparse", "norm_epsilon": 0.5}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 1}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 2, "levels": 3, "reach": 1.0}),
    ("sqkr", {"dim": 4, "bytes": 1}),
    ("privunit-inf", {"dim": 4, "bytes": 1}),
]


def outputs(layout):
    """All columns of a small layout."""
    columns = []
    for column in layout:
        if isinstance(column, Column):
            values = itertools.product(range(column.alphabet), repeat=column.count)
        else:  # signed coordinates in rising order, with distinct places
            values = (
                codes
                for codes in itertools.combinations(range(2 * column.size), column.count)
                if len({code >> 1 for code in codes}) == column.count
            )
        columns.append([np.array(each, np.uint32) for each in values])
    return itertools.product(*columns)


def levels_of(scheme, x):
    """The densities relative to the uniform law at all outputs, by how often, for an input without a coin."""
    mechanism = scheme.mechanism
    found = [math.exp(mechanism.log_density(each, x, 1.0)) for each in outputs(mechanism.layout)]
    return np.array(found) * len(found)


@pytest.mark.parametrize(("name", "options"), TINY, ids=str)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_densities_are_those_of_the_mechanism(name, options, epsilon):
    """At an input that is not randomised before the private step: products of the parts, and their shares."""
    scheme = make_scheme(name, epsilon=epsilon, **options)
    x = np.array(
        [4.0, -4.0, 4.0, 4.0] if name in ("sqkr", "privunit-inf") else [4.0, -3.0, 2.0, 1.0], np.float32
    )
    if options.get("levels") == 3:
        x = np.array([4.0, -4.0, 4.0, -4.0], np.float32)
    density = levels_of(scheme, x[: scheme.mechanism.dim])
    assert density.mean() == pytest.approx(1.0)
    with exact.precision(128):
        parts = [tuple(map(float, part())) for part in scheme.mechanism.blanket]
    expected: dict[float, float] = {1.0: 1.0}
    for high, low in parts:
        share = (1 - low) / (high - low)
        after: dict[float, float] = {}
        for (value, chance), (level, part) in itertools.product(
            expected.items(), ((high, share), (low, 1 - share))
        ):
            after[value * level] = after.get(value * level, 0.0) + chance * part
        expected = after
    for value in expected:
        chance = sum(chance for other, chance in expected.items() if math.isclose(other, value, rel_tol=1e-5))
        assert np.mean(np.isclose(density, value, rtol=1e-5)) == pytest.approx(chance, abs=1e-9)


@pytest.mark.parametrize("name", ["privunit", "privunit-g"])
@pytest.mark.parametrize("bits", [None, 128])
def test_caps_state_the_share_of_the_cap(name, bits):
    scheme = make_scheme(name, dim=20, epsilon=4.0, bits=bits)
    mechanism = scheme.mechanism if bits is None else scheme.mechanism.inner
    with exact.precision(128):
        (high, low), symbol = (part() for part in scheme.mechanism.blanket)
        assert float((1 - low) / (high - low)) == pytest.approx(float(mechanism.cap.tail()))
        assert float(high / low) == pytest.approx(math.exp(mechanism.cap.epsilon))
        assert float(symbol[0] / symbol[1]) == pytest.approx(math.exp(mechanism.norm.epsilon))


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_what_is_stated_is_a_law_and_has_the_whole_epsilon(name):
    """A q in (0, 1), and odds that multiply to e^ε. Mechanisms of other kinds state nothing."""
    mechanism = make_scheme(name, dim=64, epsilon=20.0, bytes=32).mechanism
    with exact.precision(192):
        levels = [part() for part in mechanism.blanket]
        assert all(high > 1 and 0 < low < 1 for high, low in levels)
        if levels:
            log_odds = sum(float((high / low).log()) for high, low in levels)
            assert log_odds == pytest.approx(mechanism.privacy.epsilon, rel=1e-6)
    stated = {"privunit", "privunit-g", "privunit-index", "privunit-inf", "sqkr", "sqsgd", "sqsgd-paper"}
    assert bool(levels) == (name in stated | {"sqsgd-stateless"})


SHORT = [np.array(x, np.float32) for x in ([0.3, -0.1, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0])]
LONG = [np.array(x, np.float32) for x in ([4, -3, 2, 1], [-4, 3, -2, -1], [1, 2, 3, 4], [-1, 3, -4, 2])]


def strongest(kernel, growth):
    """The largest divergence of two reports in a secret order, over all inputs, chosen adaptively.

    ``kernel`` has a row for each input. The target has row a or b, and the other user c, in the first slot;
    after each first report both choose again, and the best choices for different reports do not interact.
    """
    rows = range(len(kernel))
    target, other = kernel[:, None, :], kernel[None, :, :]
    best = 0.0
    for a, b, c in itertools.product(rows, repeat=3):
        total = 0.0
        for z in range(kernel.shape[1]):
            # P(z, .) for each (input of the target, input of the other) in the second slot, over both orders
            one, two = ((kernel[first, z] * other + kernel[c, z] * target) / 2 for first in (a, b))
            gaps = np.maximum(one[:, None] - growth * two[None, :], 0.0).sum(axis=-1)
            total += gaps.max()
        best = max(best, total)
    return best


@pytest.mark.parametrize(("name", "options"), TINY[:4], ids=str)
def test_real_reports_of_two_users_stay_below_the_bound(name, options):
    """With the densities of the mechanism itself: long and short vectors, zero, and the norm's symbol."""
    mechanism = make_scheme(name, epsilon=1.5, **options).mechanism
    columns = list(outputs(mechanism.layout))
    inputs = [x[: mechanism.dim] for x in (*LONG, *SHORT)]
    kernel = np.exp([[mechanism.log_density(each, x, 1.0) for each in columns] for x in inputs])
    for epsilon in (0.1, 0.7):
        true = strongest(kernel, math.exp(epsilon))
        assert true <= (1 + 1e-9) * blanket_bound(mechanism.blanket, 2, 1e-6).spent(epsilon)
        assert true > 0.5 * blanket_bound(mechanism.blanket, 2, 1e-6).spent(epsilon)
