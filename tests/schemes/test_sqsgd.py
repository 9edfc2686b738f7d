"""sqSGD: blocks, lengths, norms, and the search for the code with the least error."""

import itertools
import math

import numpy as np
import pytest
from cases import task, unit_vector

from sqsgd import make_scheme, seeded_rng
from sqsgd._internal.geometry import largest_sum
from sqsgd.core.codec import SignedSubset
from sqsgd.core.transforms import padded
from sqsgd.mechanisms.sparse import SparseLaw
from sqsgd.schemes.privunit import sphere_cap
from sqsgd.schemes.sqsgd import (
    LEVELS,
    REACHES,
    SIGNS,
    best_of,
    best_sparse,
    choices,
    code_of,
    most_coordinates,
    of_counts,
    visits,
)


@pytest.mark.parametrize("entries", [1, 2])
@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
@pytest.mark.parametrize("code", ["signs", "sparse"])
def test_sparse_vectors_keep_their_length(name, code, entries):
    """One round of signs and Hadamard would make a single entry 25 % too long, two of them 11 % too short."""
    options = {"code": code} | ({"coordinates": 256} if (name, code) == ("sqsgd", "sparse") else {})
    scheme = make_scheme(name, dim=256, epsilon=200.0, bytes=32, **options)
    rng, reports = seeded_rng(3), 3000
    x = np.zeros(256, np.float32)
    x[:entries] = entries**-0.5
    slopes = []
    for client in range(reports):
        t = task(scheme, client=client)
        slopes.append(scheme.decode(scheme.encode(x, t, rng), t) @ x)
    assert abs(np.mean(slopes) - 1) < 0.03 + 4 * np.std(slopes) / reports**0.5


def test_a_block_leaves_a_residual_and_the_whole_leaves_none():
    """300 coordinates are padded to 512 codes; with a byte less, a power of two of them is sent."""
    whole, block = (
        make_scheme("sqsgd", dim=300, epsilon=4000.0, bytes=size, code="signs") for size in (64, 63)
    )
    assert (whole.residual, whole.mechanism.dim, len(whole.transforms)) == (False, 512, 1)
    assert (block.residual, block.mechanism.dim, len(block.transforms)) == (True, 256, 2)
    stateless = make_scheme("sqsgd-stateless", dim=300, epsilon=4000.0, bytes=63, code="signs")
    assert (stateless.residual, stateless.mechanism.dim) == (False, 504)


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
def test_given_parameters_are_used(name):
    options = {"levels": 4, "coordinates": 64, "reach": 1.5, "norm_epsilon": 5.0}
    mechanism = make_scheme(name, dim=300, epsilon=50.0, bytes=64, **options).mechanism
    assert (mechanism.quantizer.levels, mechanism.dim, mechanism.reach) == (4, 64, 1.5)
    assert (mechanism.norm.epsilon, mechanism.quantizer.epsilon) == (5.0, 45.0)


def test_only_the_norm_depends_on_the_length():
    """A direction needs no range: with the same noise, vectors of any length are sent with the same codes."""
    mechanism = make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=32, code="signs").mechanism
    x = unit_vector(256)
    sent = [
        mechanism.randomize(np.float32(length) * x, 1.0, seeded_rng(3)) for length in (1e-3, 0.5, 0.99, 50.0)
    ]
    assert all(np.array_equal(codes, sent[0][0]) for codes, _ in sent)
    assert len({int(symbol[0]) for _, symbol in sent[:3]}) > 1
    assert sent[3][1] == mechanism.randomize(x, 1.0, seeded_rng(3))[1]  # clamped to the bound
    nothing = [mechanism.randomize(np.float32(length) * x, 1.0, seeded_rng(3)) for length in (0.0, 1e-9)]
    assert np.array_equal(nothing[0][0], nothing[1][0])


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
@pytest.mark.parametrize(("dim", "epsilon"), [(300, 1.0), (300, 50.0), (300, 2000.0), (20000, 40.0)])
def test_more_bytes_never_hurt(name, dim, epsilon):
    """The predicted error on the whole vector, times what a block of that size costs."""
    costs = []
    for size in (1, 2, 3, 8, 9, 13, 32, 33, 64, 75, 128, 256):
        mechanism = make_scheme(name, dim=dim, epsilon=epsilon, bytes=size).mechanism
        factor = visits if name == "sqsgd" else (lambda whole, size: whole / size)
        costs.append((1 + mechanism.relative_error(1.0)) * factor(padded(dim), mechanism.dim))
    assert all(after <= 1.001 * before for before, after in itertools.pairwise(costs))


def test_the_code_is_the_one_with_the_least_error_unless_it_is_given():
    chosen = {
        budget: code_of(make_scheme("sqsgd-stateless", dim=64, epsilon=budget[0], bytes=budget[1]).mechanism)
        for budget in ((4.0, 8), (2000.0, 8), (2000.0, 64))
    }
    assert list(chosen.values()) == ["sparse", "sparse", "levels"]
    for code in ("signs", "levels", "sparse"):
        assert code_of(make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=64, code=code).mechanism) == code


def log_masses(size, near, count):
    """ln of the share of codes with l matches, for every l: plain sums over the wrong signs."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])

    def log_binomial(n, k):
        return factorials[n] - factorials[k] - factorials[n - k]

    hits = np.arange(max(0, near + count - size), min(near, count) + 1)
    codes = log_binomial(near, hits) + log_binomial(size - near, count - hits) - hits * math.log(2)
    codes -= log_binomial(size, count)
    rows = [(hits >= right, right) for right in range(min(near, count) + 1)]
    return np.array([np.logaddexp.reduce(codes[at] + log_binomial(hits[at], right)) for at, right in rows])


def slow_energy(size, near, count, epsilon):
    """The least energy over all thresholds, and the threshold."""
    masses = log_masses(size, near, count)
    high = np.logaddexp.accumulate(masses[::-1])[::-1]
    gain = epsilon + math.log(-math.expm1(-epsilon))
    matches = np.log(np.arange(1, masses.size)) + masses[1:] + gain - np.logaddexp(0.0, gain + high[1:])
    scale = math.exp(matches.max()) * largest_sum(size, near) / near
    return count / scale**2, matches


@pytest.mark.parametrize("epsilon", [0.3, 4.0, 30.0, 300.0])
@pytest.mark.parametrize("size", [5, 64, 700])
def test_the_threshold_is_the_best_of_all(size, epsilon):
    """Against every threshold, with masses that are sums: the recurrence and where it ends lose nothing."""
    numbers = np.random.default_rng(size)
    for _ in range(12):
        near, count = (int(numbers.integers(1, min(size, 200) + 1)) for _ in range(2))
        found = of_counts(size, near, count, epsilon)
        energy, matches = slow_energy(size, near, count, epsilon)
        assert math.isclose(found.energy, energy, rel_tol=1e-6)
        assert matches[found.threshold - 1] > matches.max() - 1e-6


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 20.0, 60.0])
@pytest.mark.parametrize("size", [32, 96])
def test_the_search_is_near_the_exhaustive_best(size, epsilon):
    every = [
        of_counts(size, near, count, epsilon)
        for count in range(1, size // 2 + 1)
        for near in range(1, size + 1)
    ]
    found, best = best_sparse(size, epsilon, 10_000), min(every, key=lambda choice: choice.energy)
    assert found.energy <= 1.01 * best.energy


@pytest.mark.parametrize(
    ("size", "near", "count"), [(4096, 64, 64), (131072, 160, 52), (64, 40, 30), (48, 48, 24), (50, 30, 25)]
)
@pytest.mark.parametrize("epsilon", [2.0, 40.0, 394.0])
def test_floats_agree_with_the_exact_law(size, near, count, epsilon):
    choice = of_counts(size, near, count, epsilon)
    law = SparseLaw(size=size, near=near, count=count, threshold=choice.threshold, epsilon=epsilon)
    scale = law.mean_matches * largest_sum(size, near) / near
    assert math.isclose(choice.energy, count / scale**2, rel_tol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 50, 300])
def test_the_most_coordinates_are_those_that_fit(size):
    """Against asking for every number of coordinates; one more bit never allows fewer."""
    needed = [SignedSubset(count, size).bits for count in range(1, max(size // 2, 1) + 1)]
    for bits in range(needed[-1] + 3):
        assert most_coordinates(size, bits) == sum(each <= bits for each in needed)


def test_wrong_signs_count_in_dense_codes():
    """Half of 1,024 coordinates at ε = 400: matches alone promise 1.34 of the optimum; it is 1.55."""
    size, count, epsilon = 1024, 512, 400.0
    masses = log_masses(size, count, count)
    matches = np.log(np.maximum(np.arange(masses.size), 1e-300)) + masses
    high, hits = (np.logaddexp.accumulate(each[::-1])[::-1] for each in (masses, matches))
    alone = np.exp(epsilon + hits - np.logaddexp(0.0, epsilon + high))[1:].max()
    found, optimum = of_counts(size, count, count, epsilon), sphere_cap(size, epsilon).error
    law = SparseLaw(size=size, near=count, count=count, threshold=found.threshold, epsilon=epsilon)

    def ratio(mean):
        return (count / (mean * largest_sum(size, count) / count) ** 2 - 1) / optimum

    assert ratio(alone) == pytest.approx(1.343, abs=0.001)
    assert ratio(law.mean_matches) == pytest.approx(1.551, abs=0.001)
    assert (best_sparse(size, epsilon, 10_000).energy - 1) / optimum < 1.48


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
