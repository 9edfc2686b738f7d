"""The benchmark: its figures, and that the NumPy encode does the same work."""

import math
import time

import numpy as np
import pytest
from reference import g_test, hadamard
from scipy import stats

from sqsgd import PrivQuant, Task
from sqsgd.measurement.speed import (
    Figure,
    best_times,
    choice_figures,
    encode_figures,
    many_figures,
    median_times,
    numpy_encode,
    rounded_match_law,
    server_figures,
    sparse_figures,
)

HEADER = 8  # bytes: round and checksum


def test_a_figure_keeps_its_target_or_not():
    at_most, at_least = (
        {"name": "a", "unit": "x", "target": 4.0, "at_least": flag} for flag in (False, True)
    )
    assert [Figure(value=value, **at_most).met for value in (3.9, 4.0, 4.1)] == [True, True, False]
    assert [Figure(value=value, **at_least).met for value in (3.9, 4.0, 4.1)] == [False, True, True]
    assert Figure(name="a", value=1e9, unit="x").met
    assert not Figure(value=math.nan, **at_most).met
    assert [Figure(value=1.0, **each).to_dict()["target"] for each in (at_most, at_least)] == ["<= 4", ">= 4"]
    assert Figure(name="a", value=1.0, unit="x").to_dict()["target"] is None


@pytest.mark.parametrize(("dim", "levels", "epsilon"), [(64, 2, 20.0), (300, 16, 200.0)])
def test_the_rounded_law_is_the_exact_one(dim, levels, epsilon):
    quantizer = PrivQuant(dim, levels, epsilon)
    count = np.arange(dim + 1)
    weight = stats.binom.logpmf(count, dim, 1 / levels) + dim * math.log(levels)
    exact = np.exp(weight + np.where(count >= quantizer.threshold, *quantizer.law.log_densities))
    assert np.allclose(rounded_match_law(quantizer), exact, rtol=1e-8, atol=1e-300)


def codes_of(message, dim, levels):
    width = levels.bit_length() - 1
    bits = np.unpackbits(np.frombuffer(message[HEADER:], np.uint8), bitorder="little")[: dim * width]
    return bits.reshape(dim, width) @ (1 << np.arange(width))


@pytest.mark.parametrize("levels", [2, 16])
def test_the_numpy_encode_rotates_rounds_and_packs(levels):
    """With every match kept, its codes are the rotated vector's to within a level."""
    dim, task = 64, Task(round=5, client=0, seed=1, dim=64, bound=0.5)
    x = (np.random.default_rng(1).standard_normal(dim) / 8).astype(np.float32)
    all_match = np.eye(dim + 1)[dim]
    message = numpy_encode(x, task, levels, all_match, np.random.default_rng(2))
    assert len(message) == HEADER + dim * (levels.bit_length() - 1) // 8
    signs = np.random.default_rng((task.seed, task.round)).choice([-1.0, 1.0], dim)
    rotated = hadamard(signs * x) / math.sqrt(dim)
    place = (np.clip(rotated, -0.5, 0.5) + 0.5) * (levels - 1)
    assert np.all(np.abs(codes_of(message, dim, levels) - place) < 1)
    with pytest.raises(ValueError, match="finite"):
        numpy_encode(x * np.float32(np.nan), task, levels, all_match, np.random.default_rng(2))


def test_the_numpy_encode_changes_as_many_codes_as_the_law_says():
    dim, levels, task = 16, 4, Task(round=0, client=0, seed=1, dim=16, bound=1.0)
    law = rounded_match_law(PrivQuant(dim, levels, 10.0))
    x, rng, counts = np.zeros(dim, np.float32), np.random.default_rng(3), np.zeros(dim + 1)
    signs = np.random.default_rng((task.seed, task.round)).choice([-1.0, 1.0], dim)
    x[0] = 100 * signs[0]  # every rotated coordinate is far beyond the range: all codes are 3
    for _ in range(1000):
        counts[np.count_nonzero(codes_of(numpy_encode(x, task, levels, law, rng), dim, levels) == 3)] += 1
    assert g_test(counts, 1000 * law) > 1e-6


def test_the_best_turn_counts_for_each():
    """After two calls, to compile and to see how long one takes."""
    slow, quick = best_times(lambda: time.sleep(0.004), lambda: None, turns=2)
    assert 0.004 <= slow < 0.1
    assert 0 < quick < 0.001
    hiccups = iter([0.0, 0.0, 0.2, 0.0, 0.2])
    (best,) = best_times(lambda: time.sleep(max(0.02, next(hiccups))), turns=3)
    assert 0.02 <= best < 0.2


def test_the_median_of_alternating_calls_counts():
    """After two calls each, in turn; one slow call changes nothing."""
    calls = []
    pauses = iter([0.5, 0.0, 0.0, 0.2, 0.0])

    def first():
        calls.append("first")
        time.sleep(next(pauses) + 0.002)

    slow, quick = median_times(first, lambda: calls.append("second"), turns=3)
    assert 0.002 <= slow < 0.2
    assert quick >= 0
    assert calls == ["first", "second"] * 5


def test_sparse_codes_are_compared_with_signs():
    figures = list(sparse_figures(dim=300, epsilons=(40.0,)))
    assert [figure.name for figure in figures] == [
        f"{what} {name} epsilon=40: sparse / signs"
        for name in ("sqsgd-stateless", "sqsgd")
        for what in ("encode", "aggregate")
    ]
    assert all(figure.value > 0 and figure.target == 1.5 for figure in figures)


def test_choosing_and_packing_are_measured():
    figures = list(choice_figures(1 << 12))
    assert [figure.target for figure in figures] == [50.0, 300.0, 5.0, 5.0]
    assert all(figure.value > 0 for figure in figures)


def test_figures_are_ratios_that_can_be_checked():
    figures = [*encode_figures((1 << 9,), (2,)), *server_figures((1 << 9,), (16,))]
    assert [figure.name for figure in figures] == [
        "encode dim=2^9 K=2: ours",
        "encode dim=2^9 K=2: NumPy / ours",
        "encode dim=2^9 K=2: ours / copy",
        "unpack and sum dim=2^9 K=16: ours / copy",
    ]
    assert all(figure.value > 0 for figure in figures)
    assert [(figure.target, figure.at_least) for figure in figures] == [
        (None, False),
        (6.0, True),
        (None, False),
        (4.0, False),
    ]


def test_many_users_are_measured_against_one_by_one():
    figures = list(many_figures(users=24))
    assert [figure.unit for figure in figures] == ["users/s", "x"] * 2
    assert all(figure.value > 0 for figure in figures)
    assert [figure.target for figure in figures] == [8000.0, 10.0, None, None]
