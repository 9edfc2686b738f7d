"""The benchmarks run, and the NumPy encode that they compare with does the same work."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from reference import g_test, hadamard
from scipy import stats

from sqsgd import SCHEMES, PrivQuant, Task

FOLDER = Path(__file__).parents[2] / "benchmarks"
HEADER = 8  # bytes: round and checksum


def benchmark(name):
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


speed, schemes = benchmark("speed"), benchmark("schemes")
SMALL = schemes.Setting(dim=256, epsilon=40.0, bytes=24)


@pytest.fixture(scope="module")
def rows():
    return {row.scheme: row for row in schemes.estimations((SMALL,), seconds=0.3)}


def test_every_scheme_is_measured_and_predictions_hold(rows):
    """Within four standard errors (half-widths are 1.96) and 8 %: a rotation of 256 is not quite Gaussian."""
    assert {name for name in rows if ", " not in name} == set(SCHEMES)
    for row in rows.values():
        if math.isfinite(row.predicted):
            assert abs(row.nmse - row.predicted) <= 2 * row.half_width + 0.08 * row.predicted + 1e-9, row
        if row.notion == "local" and row.where == "whole":
            assert row.nmse > SMALL.optimum - 2 * row.half_width, f"{row} beats the optimum"
    assert {name for name, row in rows.items() if row.where == "block"} == {"sqsgd-paper"}
    assert {name for name, row in rows.items() if "biased" in row.where} == {"fedsel", "dgc"}


@pytest.mark.parametrize(
    ("dim", "epsilon", "size", "most_bytes", "ratio"),
    [
        (119850, 400.0, 256, 96, 1.25),
        (119850, 100.0, 27, 32, 1.22),
        (119850, 40.0, 11, 16, 1.15),
        (119850, 20.0, 7, 12, 1.10),
        (1722224, 2000.0, 415, 420, 1.25),
    ],
)
def test_the_stateless_scheme_is_close_to_the_optimum(dim, epsilon, size, most_bytes, ratio):
    """The optimum sends 32 bits per coordinate."""
    setting = schemes.Setting(dim=dim, epsilon=epsilon, bytes=size)
    assert setting in schemes.SETTINGS
    scheme = dict(schemes.schemes_at(setting))["sqsgd-stateless"]
    assert scheme.nmse < ratio * setting.optimum
    row = schemes.measure("sqsgd-stateless", scheme, setting, seconds=0.1)
    assert row.nmse < ratio * setting.optimum
    assert row.message_bytes <= most_bytes


def test_the_optimum_matches_the_literature():
    found = {(setting.dim, setting.epsilon): round(setting.optimum, 1) for setting in schemes.SETTINGS}
    assert (found[119850, 400.0], found[1722224, 2000.0]) == (153.5, 432.9)


def test_a_figure_meets_its_target_or_not():
    for at_least, met in ((False, [True, True, False]), (True, [False, True, True])):
        figures = [
            speed.Figure(name="a", value=value, unit="x", target=4.0, at_least=at_least)
            for value in (3.9, 4.0, 4.1)
        ]
        assert [figure.met for figure in figures] == met
    assert not speed.Figure(name="a", value=math.nan, unit="x", target=4.0).met


@pytest.mark.parametrize(("dim", "levels", "epsilon"), [(64, 2, 20.0), (300, 16, 200.0)])
def test_the_rounded_law_is_the_exact_one(dim, levels, epsilon):
    quantizer = PrivQuant(dim, levels, epsilon)
    count = np.arange(dim + 1)
    weight = stats.binom.logpmf(count, dim, 1 / levels) + dim * math.log(levels)
    exact = np.exp(weight + np.where(count >= quantizer.threshold, *quantizer.law.log_densities))
    assert np.allclose(speed.rounded_match_law(quantizer), exact, rtol=1e-8, atol=1e-300)


def codes_of(message, dim, levels):
    width = levels.bit_length() - 1
    bits = np.unpackbits(np.frombuffer(message[HEADER:], np.uint8), bitorder="little")[: dim * width]
    return bits.reshape(dim, width) @ (1 << np.arange(width))


@pytest.mark.parametrize("levels", [2, 16])
def test_the_numpy_encode_rotates_rounds_and_packs(levels):
    """If every match is kept, its codes are within one level of the rotated vector."""
    dim, task = 64, Task(round=5, client=0, seed=1, dim=64, bound=0.5)
    x = (np.random.default_rng(1).standard_normal(dim) / 8).astype(np.float32)
    message = speed.numpy_encode(x, task, levels, np.eye(dim + 1)[dim], np.random.default_rng(2))
    assert len(message) == HEADER + dim * (levels.bit_length() - 1) // 8
    signs = np.random.default_rng((task.seed, task.round)).choice([-1.0, 1.0], dim)
    rotated = hadamard(signs * x) / math.sqrt(dim)
    place = (np.clip(rotated, -0.5, 0.5) + 0.5) * (levels - 1)
    assert np.all(np.abs(codes_of(message, dim, levels) - place) < 1)


def test_the_numpy_encode_follows_the_match_law():
    dim, levels, task = 16, 4, Task(round=0, client=0, seed=1, dim=16, bound=1.0)
    law = speed.rounded_match_law(PrivQuant(dim, levels, 10.0))
    x, rng, counts = np.zeros(dim, np.float32), np.random.default_rng(3), np.zeros(dim + 1)
    signs = np.random.default_rng((task.seed, task.round)).choice([-1.0, 1.0], dim)
    x[0] = 100 * signs[0]  # every rotated coordinate is far beyond the range: all codes are 3
    for _ in range(1000):
        codes = codes_of(speed.numpy_encode(x, task, levels, law, rng), dim, levels)
        counts[np.count_nonzero(codes == 3)] += 1
    assert g_test(counts, 1000 * law) > 1e-6


def test_every_kind_of_figure_is_measured():
    figures = [
        *speed.encode_figures((1 << 9,), (2,)),
        *speed.server_figures((1 << 9,), (16,)),
        *speed.sparse_figures(dim=300, epsilons=(40.0,)),
        *speed.choice_figures(1 << 12),
        *speed.many_figures(users=24),
    ]
    assert len(figures) == 16
    assert all(figure.value > 0 for figure in figures)
