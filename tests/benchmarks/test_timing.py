"""The benchmark of times works, and sees a difference that is there."""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sqsgd import ScalarDP, Task

PATH = Path(__file__).parents[2] / "benchmarks" / "timing.py"
SPEC = importlib.util.spec_from_file_location("benchmark_timing", PATH)
timing = importlib.util.module_from_spec(SPEC)
sys.modules["benchmark_timing"] = timing  # dataclasses look their module up
SPEC.loader.exec_module(timing)


def test_the_area_under_the_curve():
    times, side = np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, False, True, True])
    assert timing.auc(times, side)[0] == timing.auc(times, ~side)[0] == 1.0
    assert timing.auc(np.ones(4), side)[0] == 0.5
    numbers = np.random.default_rng(1)
    same = numbers.standard_normal(20_000)
    area, error = timing.auc(same, numbers.random(20_000) < 0.5)
    assert area - 0.5 < 5 * error


def row(**changes):
    """A small scheme whose forced draw is whether the norm is kept."""
    usual = {"name": "sqsgd", "dim": 300, "epsilon": 20.0, "options": timing.SIGNS, "bytes": 8}
    return timing.Row(**{**usual, "coin": (2, lambda mechanism: mechanism.norm._stays), **changes})


def test_both_sides_of_a_draw_are_forced():
    scheme = row().make()
    runs = list(timing.encodes(row(), scheme, 60, whole=True))
    edge = timing._edge(scheme.mechanism, scheme.mechanism.norm._stays)
    assert {run[1] for run in runs} == {run[0] == 1 for run in runs} == {True, False}
    for _, high, encode, cpu, wall in runs:
        assert (encode.words[2] >= edge) == high
        assert cpu >= 0
        assert wall > 0


def test_both_sides_of_a_sparse_draw_are_forced():
    options = {"code": "sparse", "coordinates": 64, "norm_epsilon": 4.0}
    sparse = row(options=options, coin=(0, timing.matches))
    scheme = sparse.make()
    law, task = scheme.mechanism.law, Task(round=1, client=2, seed=3, dim=300, bound=scheme.unit_bound)
    inputs = [timing._transformed(scheme, x, task) for x in timing.vectors(scheme.dim)]
    near = [scheme.mechanism._near(x, 1.0)[0] for x in inputs]
    for which, high, encode, _, _ in timing.encodes(sparse, scheme, 60, whole=True):
        assert (np.isin(encode.codes[0], near[which]).sum() >= law.threshold) == high


def test_a_step_that_takes_longer_on_one_side_is_seen(monkeypatch):
    """The perturbed norm takes half a millisecond more: the AUC is nearly one."""
    correct = ScalarDP.privatize

    def slow(self, value, rng):
        kept = rng._spare[-2] >= timing._edge(None, self._stays)
        ending = time.perf_counter() + (0.0 if kept else 5e-4)
        while time.perf_counter() < ending:
            pass
        return correct(self, value, rng)

    monkeypatch.setattr(ScalarDP, "privatize", slow)
    found = timing.measured(row(), 100, whole=False)
    assert found["coin"][0] > 0.9


FIRST = {(row.name, str(row.options)): row for row in reversed(timing.ROWS)}


@pytest.mark.parametrize("which", sorted(FIRST), ids=" ".join)
def test_every_row_runs(which):
    found = timing.measured(FIRST[which], 4)
    assert 0.5 <= found["inputs"][0] <= 1.0
