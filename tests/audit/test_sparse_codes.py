"""Reports of sparse codes against their law, where outputs cannot be listed."""

import math

import numpy as np
import pytest
from subjects import subject

from sqsgd.audit.sparse_codes import _part_sizes, law_of_sparse_codes, pair_probabilities
from sqsgd.mechanisms.sparse_law import SparseLaw

NORM = {"norm_epsilon": 1.0}


def test_pairs_have_the_probabilities_of_the_density():
    law = SparseLaw(size=64, near=24, count=12, threshold=8, epsilon=6.4)
    found = pair_probabilities(law)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    high, low = law.log_densities
    for (right, wrong), chance in found.items():
        hits = right + wrong
        ways = math.comb(24, hits) * math.comb(hits, right) * math.comb(40, 12 - hits) * 2 ** (12 - hits)
        assert chance == pytest.approx(ways * math.exp(high if right >= 8 else low), rel=1e-9)


@pytest.mark.parametrize(("size", "near"), [(64, 24), (50, 49), (16, 16), (1000, 3)])
def test_parts_cover_what_is_outside(size, near):
    sizes = _part_sizes(SparseLaw(size=size, near=near, count=1, threshold=1, epsilon=1.0))
    parts = np.bincount(np.arange(size - near) * 8 // max(1, size - near), minlength=8)
    assert sizes.tolist() == [*parts, *parts]


@pytest.mark.parametrize(
    ("name", "epsilon", "options", "names"),
    [
        ("sqsgd", 8.0, NORM, {"law of matches and wrong signs", "law of the norm symbol"}),
        ("sqsgd", 100.0, NORM, {"places of the matches", "law of the norm symbol"}),
        ("sqsgd", 100.0, {}, {"places of the matches"}),
        ("sqsgd-stateless", 8.0, {}, {"law of matches and wrong signs", "places of the matches"}),
        ("sqsgd-stateless", 40.0, {}, {"law of matches and wrong signs", "places of the matches"}),
    ],
)
def test_correct_codes_pass(name, epsilon, options, names):
    """With the norm symbol, and with the coin."""
    checked = subject(name, {"code": "sparse", **options}, epsilon=epsilon, trials=10_000)
    findings = list(law_of_sparse_codes(checked))
    assert [found.name for found in findings if found.outcome == "violated"] == []
    assert names <= {found.name for found in findings if found.outcome == "passed"}


def test_other_schemes_are_skipped():
    (found,) = law_of_sparse_codes(subject("sqsgd"))
    assert found.outcome == "not applicable"
