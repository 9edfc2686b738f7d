"""Measured estimates: predictions hold, blocks are marked, nothing beats the optimum."""

import math

import pytest

from sqsgd import SCHEMES
from sqsgd.measurement.estimation import SETTINGS, Setting, estimations, measure, schemes_at

SMALL = Setting(dim=256, epsilon=40.0, bytes=24)


@pytest.fixture(scope="module")
def rows():
    return {row.scheme: row for row in estimations((SMALL,), seconds=0.3)}


def test_every_scheme_is_measured(rows):
    assert {name for name in rows if ", " not in name} == set(SCHEMES)


def test_predictions_hold(rows):
    """Within four standard errors (half-widths are 1.96) and 8 %: a rotation of 256 is not quite Gaussian."""
    for row in rows.values():
        if math.isfinite(row.predicted):
            assert abs(row.nmse - row.predicted) <= 2 * row.half_width + 0.08 * row.predicted + 1e-9, row


def test_nothing_unbiased_and_private_beats_the_optimum(rows):
    for row in rows.values():
        if row.notion == "local" and row.where == "whole":
            assert row.nmse > SMALL.optimum - 2 * row.half_width, row


def test_the_optimum_is_that_of_the_literature():
    found = {(setting.dim, setting.epsilon): round(setting.optimum, 1) for setting in SETTINGS}
    assert (found[119850, 400.0], found[1722224, 2000.0]) == (153.5, 432.9)


@pytest.mark.parametrize(
    ("dim", "epsilon", "bits", "most_bytes", "ratio"),
    [
        (119850, 400.0, 2048, 96, 1.25),
        (119850, 100.0, 216, 32, 1.22),
        (119850, 40.0, 88, 16, 1.15),
        (119850, 20.0, 56, 12, 1.10),
        (1722224, 2000.0, 3320, 420, 1.25),
    ],
)
def test_the_stateless_scheme_is_close_to_the_optimum(dim, epsilon, bits, most_bytes, ratio):
    """The optimum sends 32 bits per coordinate."""
    setting = Setting(dim=dim, epsilon=epsilon, bytes=bits // 8)
    assert setting in SETTINGS
    scheme = dict(schemes_at(setting))["sqsgd-stateless"]
    assert scheme.nmse < ratio * setting.optimum
    row = measure("sqsgd-stateless", scheme, setting, seconds=0.1)
    assert row.nmse < ratio * setting.optimum
    assert row.message_bytes <= most_bytes


def test_blocks_are_marked(rows):
    assert {name for name, row in rows.items() if row.where == "block"} == {"sqsgd-paper"}
    assert math.isnan(rows["sqsgd-paper"].ratio_to_optimum)
    assert {name for name, row in rows.items() if "biased" in row.where} == {"fedsel", "dgc"}
    assert rows["sqsgd-paper"].to_dict()["ratio_to_optimum"] is None
    assert rows["fedsgd"].to_dict()["epsilon"] == "infinity"
