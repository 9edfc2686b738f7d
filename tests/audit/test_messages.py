"""A message must not contain the vector's numbers at any offset, nor numbers that correlate with them."""

import struct

import numpy as np
import pytest
from subjects import subject

from sqsgd.audit.messages import _known, _largest_correlation, _words, message_checks


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("kind", ["<f4", "<f2"])
def test_a_number_in_the_clear_is_found_at_any_offset(kind, offset):
    """As float32, or as float16 together with its neighbour: a single float16 is any two bytes."""
    vector = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    hidden = vector[20:22].astype(kind).tobytes()[:4]
    message = bytes(range(200, 200 + offset)) + hidden + bytes(range(100, 120))
    assert np.count_nonzero(np.isin(_words(message), _known(vector))) == 1
    assert not np.isin(_words(message), _known(vector[:20])).any()


def test_zeros_do_not_count_as_numbers_in_the_clear():
    known = _known(np.array([0.0, -0.0, 1.0, 0.0], np.float32))
    assert not np.isin(_words(bytes(40)), known).any()
    assert np.isin(_words(struct.pack("<f", 1.0)), known).all()


def test_a_reading_that_correlates_with_a_stretch_of_the_vector_is_found():
    numbers = np.random.default_rng(2)
    target = numbers.standard_normal(3000)
    reading = target[1234:1334] + 0.1 * numbers.standard_normal(100)
    assert _largest_correlation(reading, target) > 0.9
    assert _largest_correlation(-np.exp(3 * reading), target) > 0.9  # by ranks, with either sign
    wild = reading.copy()
    wild[::10] = np.inf
    assert _largest_correlation(wild, target) > 0.8


def test_noise_and_constants_do_not_correlate():
    numbers = np.random.default_rng(3)
    target = numbers.standard_normal(3000)
    assert _largest_correlation(numbers.standard_normal(100), target) < 0.5
    assert _largest_correlation(np.full(100, 7.0), target) == 0.0
    assert _largest_correlation(np.full(100, np.nan), target) == 0.0


@pytest.mark.parametrize(
    ("name", "tried", "skipped"),
    [
        ("sqsgd signs", 6, set()),
        ("sqsgd-stateless signs", 5, {"coordinates that are not sent"}),
        (
            "sqsgd",
            3,
            {"coordinates that are not sent", "same codes, same bytes", "correlation of the bytes"},
        ),
        ("vqsgd", 3, {"coordinates that are not sent", "same codes, same bytes", "correlation of the bytes"}),
        ("fedsgd", 1, set()),
        ("privunit", 4, {"coordinates that are not sent", "same codes, same bytes"}),
    ],
)
def test_checks_that_do_not_apply_are_skipped_and_not_passed(name, tried, skipped):
    name, _, code = name.partition(" ")
    findings = [*message_checks(subject(name, {"code": code} if code else {}))]
    assert sum(finding.outcome == "passed" for finding in findings) == tried
    assert {finding.name for finding in findings if finding.outcome == "not applicable"} == skipped
