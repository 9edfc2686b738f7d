"""Repeated or insufficient noise: how an audit counts draws, compares reports and watches keys."""

import os
import random

import numpy as np
import pytest

from sqsgd import Rng, secure_rng, seeded_rng
from sqsgd.audit.noise import CountingRng, draw_in_every_setting, key_of, rounds_check

DRAWS = {
    "take": lambda rng: rng.take(24).tolist(),
    "fill": lambda rng: rng.fill(np.empty(24, np.uint8)),
    "word": lambda rng: rng.word(),
    "words": lambda rng: rng.words(3).tolist(),
    "below": lambda rng: rng.below(10),
    "uniform": lambda rng: rng.uniform(),
    "uniforms": lambda rng: rng.uniforms(3).tolist(),
    "below_many": lambda rng: rng.below_many(np.array([10, 7, 3])).tolist(),
    "child": lambda rng: rng.child().word(),
}


def test_every_way_to_draw_is_counted():
    """At least as many bytes as the output holds, and the numbers are unchanged."""
    public = {name for name in vars(Rng) if not name.startswith("_") and callable(getattr(Rng, name))}
    assert public == set(DRAWS)
    for name, draw in DRAWS.items():
        watched = CountingRng(3)
        drawn = draw(watched)
        assert watched.drawn >= {"take": 24, "fill": 24, "words": 24, "uniforms": 24}.get(name, 8), name
        assert drawn == draw(seeded_rng(3))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_setting_repeats_another():
    draw = lambda rng, which: [rng.take(16).tobytes()]  # noqa: E731
    pieces, settings = draw_in_every_setting(secure_rng, draw)
    assert len(pieces) == len(set(pieces)) == 11
    assert "forks" in settings
    pieces, settings = draw_in_every_setting(lambda: seeded_rng(1), draw)
    assert "forks" not in settings
    assert len(pieces) - len(set(pieces)) == 3


def test_other_names_of_the_calls_are_watched_and_put_back():
    """random.SystemRandom has a name of its own for os.urandom."""
    real = os.urandom
    found = key_of(lambda: seeded_rng(random.SystemRandom().getrandbits(256)))
    assert (found.read, found.bits) == (32, 256)
    assert os.urandom is random._urandom is real
    calls = iter([seeded_rng(1)])
    with pytest.raises(StopIteration):
        key_of(lambda: next(calls))
    assert os.urandom is random._urandom is real


def reports(count=300, size=64):
    numbers = np.random.default_rng(1)
    return [tuple(numbers.bytes(size) for _ in range(3)) for _ in range(count)]


def test_reports_of_one_client_that_are_too_alike_are_caught():
    """One byte in eight repeats the client's other report, or is its complement."""
    assert rounds_check(reports()).outcome == "passed"
    alike = [(first, again, first[:8] + later[8:]) for first, again, later in reports()]
    assert rounds_check(alike).outcome == "violated"
    opposite = [(a, bytes(255 - byte for byte in a[:8]) + b[8:], c) for a, b, c in reports()]
    assert rounds_check(opposite).outcome == "violated"
