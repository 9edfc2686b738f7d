"""The benchmarks run; their predictions hold, and the one of times sees a difference that is there."""

import dataclasses
import importlib
import math
import sys
import time
from pathlib import Path

import pytest

from sqsgd import SCHEMES, ScalarDP

FOLDER = Path(__file__).parents[2] / "benchmarks"


def benchmark(name):
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


speed, schemes, timing = benchmark("speed"), benchmark("schemes"), benchmark("timing")
SMALL = schemes.Setting(dim=256, epsilon=40.0, bytes=24)


def test_every_scheme_is_measured_and_predictions_hold():
    """Within four standard errors (half-widths are 1.96) and 8 %: a rotation of 256 is not quite Gaussian."""
    rows = {row.scheme: row for row in schemes.estimations((SMALL,), seconds=0.15)}
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
def test_the_stateless_scheme_is_close_to_the_optimum(dim, epsilon, size, most_bytes, ratio, monkeypatch):
    """The optimum sends 32 bits per coordinate. Errors in so many dimensions hardly vary: few trials do."""
    monkeypatch.setattr(schemes, "LEAST_TRIALS", 6)
    setting = schemes.Setting(dim=dim, epsilon=epsilon, bytes=size)
    assert setting in schemes.SETTINGS
    scheme = dict(schemes.schemes_at(setting))["sqsgd-stateless"]
    assert scheme.nmse < ratio * setting.optimum
    row = schemes.measure("sqsgd-stateless", scheme, setting, seconds=0.0)
    assert row.nmse < ratio * setting.optimum
    assert row.message_bytes <= most_bytes


def test_every_kind_of_figure_is_measured(monkeypatch):
    """In as few turns as there can be: what takes long is to repeat them."""
    for name in ("best_times", "median_times"):
        timed = getattr(speed, name)
        monkeypatch.setattr(speed, name, lambda *jobs, timed=timed, **_: timed(*jobs, turns=1))
    monkeypatch.setattr(speed, "_TURN_SECONDS", 0.0)
    figures = [
        *speed.encode_figures((1 << 9,), (2,)),
        *speed.server_figures((1 << 9,), (16,)),
        *speed.sparse_figures(dim=300, epsilons=(40.0,)),
        *speed.choice_figures(1 << 12),
        *speed.many_figures(users=24),
    ]
    assert len(figures) == 16
    assert all(figure.value > 0 for figure in figures)


# ---------------------------------------------------------------- times


def test_a_step_that_takes_longer_on_one_side_is_seen(monkeypatch):
    """Whether the norm is kept is forced; a perturbed one takes half a millisecond more."""
    correct = ScalarDP.privatize

    def slow(self, value, rng):
        kept = rng._spare[-2] >= timing._edge(None, self._stays)
        ending = time.perf_counter() + (0.0 if kept else 5e-4)
        while time.perf_counter() < ending:
            pass
        return correct(self, value, rng)

    monkeypatch.setattr(ScalarDP, "privatize", slow)
    row = timing.Row(
        name="sqsgd", dim=300, epsilon=20.0, options=timing.SIGNS, bytes=8,
        coin=(2, lambda mechanism: mechanism.norm._stays),
    )  # fmt: skip
    assert timing.measured(row, 100, whole=False)["coin"][0] > 0.9


FIRST = {(row.name, str(row.options)): row for row in reversed(timing.ROWS)}


@pytest.mark.parametrize("which", sorted(FIRST), ids=" ".join)
def test_every_row_runs(which):
    """In fewer dimensions than in the benchmark."""
    found = timing.measured(dataclasses.replace(FIRST[which], dim=3000), 4)
    assert 0.5 <= found["inputs"][0] <= 1.0
