"""sqSGD in direction mode: blocks, lengths, norms."""

import itertools

import numpy as np
import pytest
from cases import task, unit_vector

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.schemes.code_choice import visits
from sqsgd.schemes.sqsgd import code_of
from sqsgd.transforms import padded


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


def test_one_nmse_of_the_planners_table():
    """A case that was measured independently: D = 1024, n = 128, ε = 40, signs, known norm: 25.85."""
    scheme = make_scheme("sqsgd-stateless", dim=1024, epsilon=65.0, bytes=16, norm_epsilon=25.0, code="signs")
    assert scheme.mechanism.quantizer.epsilon == 40.0
    rng, errors = seeded_rng(6), []
    for client in range(6000):
        x = unit_vector(1024, seed=client % 50)
        t = Task(round=client % 11, client=client, seed=5, dim=1024, bound=2.0)
        estimate = scheme.decode(scheme.encode(x, t, rng), t)
        errors.append(np.sum((estimate - x) ** 2))
    # The norm of the sent block varies by 1/(2 n): it and the symbol's error add about 0.8 %.
    assert abs(np.mean(errors) - 25.85) < 0.02 * 25.85 + 4 * np.std(errors) / len(errors) ** 0.5


def test_a_block_leaves_a_residual_and_the_whole_leaves_none():
    """300 coordinates are padded to 512 codes; with one bit less, a power of two of them is sent."""
    whole, block = (
        make_scheme("sqsgd", dim=300, epsilon=4000.0, bits=bits, code="signs") for bits in (512, 511)
    )
    assert (whole.residual, whole.mechanism.dim, len(whole.transforms)) == (False, 512, 1)
    assert (block.residual, block.mechanism.dim, len(block.transforms)) == (True, 256, 2)
    stateless = make_scheme("sqsgd-stateless", dim=300, epsilon=4000.0, bytes=64, code="signs")
    assert (stateless.residual, stateless.mechanism.dim) == (False, 511)


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
def test_given_parameters_are_used(name):
    options = {"levels": 4, "coordinates": 64, "reach": 1.5, "norm_epsilon": 5.0}
    mechanism = make_scheme(name, dim=300, epsilon=50.0, bytes=64, **options).mechanism
    assert (mechanism.quantizer.levels, mechanism.dim, mechanism.reach) == (4, 64, 1.5)
    assert (mechanism.norm.epsilon, mechanism.quantizer.epsilon) == (5.0, 45.0)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="coordinates = 100 must be a power of two, for the rotation"):
        make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=64, coordinates=100)
    assert (
        make_scheme("sqsgd-stateless", dim=300, epsilon=50.0, bytes=64, coordinates=100).mechanism.dim == 100
    )
    with pytest.raises(ValueError, match="coordinates = 600 must be a whole number from 1 to 512"):
        make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=1125, coordinates=600)
    with pytest.raises(ValueError, match=r"reach = 30\.0"):
        make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=64, reach=30.0)


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


def test_the_magnitude_is_the_norm_without_bias():
    mechanism, rng = (
        make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=32, norm_epsilon=2.0, code="signs").mechanism,
        seeded_rng(4),
    )
    x = np.float32(0.7 * 2.0) * unit_vector(256)
    found = [mechanism.magnitude(mechanism.randomize(x, 2.0, rng), 2.0) for _ in range(3000)]
    assert abs(np.mean(found) - 1.4) < 4 * np.std(found) / 3000**0.5


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
@pytest.mark.parametrize(("dim", "epsilon"), [(300, 1.0), (300, 50.0), (300, 2000.0), (20000, 40.0)])
def test_more_bits_never_hurt(name, dim, epsilon):
    """The predicted error on the whole vector, times what a block of that size costs."""
    costs = []
    for bits in (7, 8, 16, 17, 63, 64, 100, 255, 256, 257, 511, 512, 600, 1024, 2048):
        mechanism = make_scheme(name, dim=dim, epsilon=epsilon, bits=bits).mechanism
        factor = visits if name == "sqsgd" else (lambda whole, size: whole / size)
        costs.append((1 + mechanism.relative_error(1.0)) * factor(padded(dim), mechanism.dim))
    assert all(after <= 1.001 * before for before, after in itertools.pairwise(costs))


def test_the_code_is_the_one_with_the_least_error_unless_it_is_given():
    chosen = {
        budget: code_of(make_scheme("sqsgd-stateless", dim=64, epsilon=budget[0], bits=budget[1]).mechanism)
        for budget in ((4.0, 64), (2000.0, 64), (2000.0, 512), (2000.0, 4))
    }
    assert chosen == {
        (4.0, 64): "sparse",
        (2000.0, 64): "sparse",
        (2000.0, 512): "levels",
        (2000.0, 4): "signs",
    }
    for code in ("signs", "levels", "sparse"):
        assert code_of(make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=64, code=code).mechanism) == code


def test_codes_that_do_not_go_with_their_options():
    for options, message in (
        ({"code": "dense"}, "code = 'dense' must be one of signs, levels, sparse"),
        ({"code": "sparse", "levels": 3}, "leave them out"),
        ({"code": "signs", "levels": 4}, "two levels, not 4"),
        ({"code": "levels", "levels": 2}, "three or more"),
        ({"code": "signs", "norm_epsilon": 0.0}, "norm_epsilon = 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_scheme("sqsgd", dim=300, epsilon=50.0, bytes=64, **options)
