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
from sqsgd.schemes.sqsgd import (
    LEVELS,
    REACHES,
    SIGNS,
    best_of,
    best_sparse,
    choices,
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
    rng, reports = seeded_rng(3), 1200
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
    assert (whole.keeps_state, whole.mechanism.dim, len(whole.transforms)) == (False, 512, 1)
    assert (block.keeps_state, block.mechanism.dim, len(block.transforms)) == (True, 256, 2)
    stateless = make_scheme("sqsgd-stateless", dim=300, epsilon=4000.0, bytes=63, code="signs")
    assert (stateless.keeps_state, stateless.mechanism.dim) == (False, 504)


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
    scale = choice.law.mean_matches * largest_sum(size, near) / near
    assert math.isclose(choice.energy, count / scale**2, rel_tol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 50, 300])
def test_the_most_coordinates_are_those_that_fit(size):
    """Against asking for every number of coordinates; one more bit never allows fewer."""
    needed = [SignedSubset(count, size).bits for count in range(1, max(size // 2, 1) + 1)]
    for bits in range(needed[-1] + 3):
        assert most_coordinates(size, bits) == sum(each <= bits for each in needed)


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
