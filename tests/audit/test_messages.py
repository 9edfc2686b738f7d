"""A message must not contain the vector's numbers, nor what correlates with them or with its direction."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from subjects import subject

from sqsgd import make_scheme
from sqsgd.audit import Subject
from sqsgd.audit.messages import (
    four_byte_words,
    guessed_directions,
    largest_correlation,
    message_checks,
    numbers_as_words,
)
from sqsgd.core import Privacy
from sqsgd.schemes.clear import InClear

SENT, WHOLE = "direction of what is sent", "direction of the whole vector"
UNSENT, SAME, READ = "coordinates that are not sent", "same codes, same bytes", "correlation of the bytes"


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("kind", ["<f4", "<f2"])
def test_a_number_in_the_clear_is_found_at_any_offset(kind, offset):
    """As float32, or as float16 together with its neighbour: a single float16 is any two bytes."""
    vector = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    hidden = vector[20:22].astype(kind).tobytes()[:4]
    words = four_byte_words(bytes(range(200, 200 + offset)) + hidden + bytes(range(100, 120)))
    assert np.count_nonzero(np.isin(words, numbers_as_words(vector))) == 1
    assert not np.isin(words, numbers_as_words(vector[:20])).any()
    assert not np.isin(four_byte_words(bytes(40)), numbers_as_words(np.array([0.0, -0.0, 1.0]))).any()


def test_a_reading_that_correlates_with_a_stretch_of_the_vector_is_found():
    numbers = np.random.default_rng(2)
    target = numbers.standard_normal(3000)
    reading = target[1234:1334] + 0.1 * numbers.standard_normal(100)
    assert largest_correlation(reading, target) > 0.9
    assert largest_correlation(-np.exp(3 * reading), target) > 0.9  # by ranks, with either sign
    assert largest_correlation(np.where(np.arange(100) % 10, reading, np.inf), target) > 0.8
    for nothing, most in (
        (numbers.standard_normal(100), 0.5),
        (np.full(100, 7.0), 0),
        (np.full(100, np.nan), 0),
    ):
        assert largest_correlation(nothing, target) <= most


@pytest.mark.parametrize(
    ("name", "code", "tried", "skipped"),
    [
        ("sqsgd", "signs", 6, set()),
        ("sqsgd-stateless", "signs", 5, {UNSENT}),
        ("sqsgd", None, 3, {UNSENT, SAME, READ}),
        ("vqsgd", None, 3, {UNSENT, SAME, READ}),
        ("fedsgd", None, 1, set()),
        ("privunit", None, 4, {UNSENT, SAME}),
    ],
)
def test_checks_that_do_not_apply_are_skipped_and_not_passed(name, code, tried, skipped):
    findings = [*message_checks(subject(name, {"code": code} if code else {}))]
    assert sum(finding.outcome == "passed" for finding in findings) == tried
    assert {finding.name for finding in findings if finding.outcome == "not applicable"} == skipped


# ---------------------------------------------------------------- directions


@dataclass(frozen=True, kw_only=True)
class Pretending(InClear):
    """Sends the vector unchanged and claims privacy."""

    @property
    def privacy(self):
        return Privacy(epsilon=2.0, notion="local")


def directions(case):
    return {finding.name: finding for finding in guessed_directions(case)}


def test_a_vector_in_clear_is_beyond_every_bound():
    def make(*, dim, epsilon, bytes):
        return replace(make_scheme("fedsgd", dim=dim), mechanism=Pretending(dim=dim))

    finding = directions(Subject(name="pretending", make=make, dim=500, trials=1000))[WHOLE]
    assert finding.outcome == "violated"
    assert finding.measured == pytest.approx(1.0)
    assert finding.limit < 0.5


def test_blocks_and_whole_vectors_are_guessed_separately():
    """The block is recovered better than the whole vector, both within their bounds."""
    findings = directions(subject("sqsgd"))
    assert {name: finding.outcome for name, finding in findings.items()} == {SENT: "passed", WHOLE: "passed"}
    assert 0 < findings[WHOLE].details["mean"] < findings[SENT].details["mean"]
    assert [findings[name].details["dimensions"] for name in (SENT, WHOLE)] == [512, 1000]
    without = directions(subject("fedsgd"))[WHOLE], directions(subject("sqsgd", dim=300, epsilon=400.0))[SENT]
    assert [finding.outcome for finding in without] == 2 * ["not applicable"]
