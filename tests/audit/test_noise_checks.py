"""Repeated or insufficient noise: how an audit counts draws and compares reports."""

import numpy as np
import pytest
from subjects import subject

from sqsgd import Rng, secure_rng, seeded_rng
from sqsgd.audit.noise_checks import _by_chance, _CountingRng, _likeliest, _nearness, _rounds
from sqsgd.audit.subject import task_for

DRAWS = {
    "take": lambda rng: rng.take(24).tolist(),
    "fill": lambda rng: rng.fill(np.empty(24, np.uint8)),
    "word": lambda rng: rng.word(),
    "words": lambda rng: rng.words(3).tolist(),
    "below": lambda rng: rng.below(10),
    "uniform": lambda rng: rng.uniform(),
    "uniforms": lambda rng: rng.uniforms(3).tolist(),
}


def test_every_way_to_draw_is_counted():
    """At least as many bytes as the output holds, and the numbers are unchanged."""
    public = {name for name in vars(Rng) if not name.startswith("_") and callable(getattr(Rng, name))}
    assert public == set(DRAWS)
    for name, draw in DRAWS.items():
        watched = _CountingRng(3)
        drawn = draw(watched)
        assert watched.drawn >= {"take": 24, "fill": 24, "words": 24, "uniforms": 24}.get(name, 8), name
        assert drawn == draw(seeded_rng(3))


def reports(count=300, size=64, seed=1):
    numbers = np.random.default_rng(seed)
    return [tuple(numbers.bytes(size) for _ in range(3)) for _ in range(count)]


def test_reports_of_one_client_that_are_too_alike_are_caught():
    """One byte in eight repeats the client's other report, or all bits are inverted."""
    assert _rounds(reports()).outcome == "passed"
    alike = [(first, again, first[:8] + later[8:]) for first, again, later in reports()]
    assert _rounds(alike).outcome == "violated"
    opposite = [
        (first, bytes(255 - byte for byte in first[:8]) + again[8:], later)
        for first, again, later in reports()
    ]
    assert _rounds(opposite).outcome == "violated"


def test_nearness_is_in_standard_errors():
    """For independent reports it is approximately standard normal."""
    found = []
    for seed in range(200):
        bits = np.random.default_rng(seed).integers(0, 2, (2, 60, 128)).astype(np.uint8)
        found.append(_nearness(*bits))
    assert abs(np.mean(found)) < 4 / 200**0.5
    assert 0.7 < np.std(found) <= 1.15


def test_chance_repeats_are_counted_by_pairs():
    assert _by_chance(0.25, [b""] * 4) == 0.25 * 6
    drawn = [secure_rng().below(100) for _ in range(500)]
    pairs = sum(drawn.count(value) * (drawn.count(value) - 1) / 2 for value in set(drawn))
    assert pairs == pytest.approx(_by_chance(0.01, drawn), rel=0.3)


def test_the_likeliest_report_bounds_how_often_two_agree():
    """Randomised response on one bit repeats often; 512 private bits never do."""
    for name, sizes, least, most in (
        ("ldp-fl", {"dim": 1, "bits": 8, "epsilon": 1.0}, 0.4, 1.0),
        ("sqsgd", {"options": {"code": "signs"}}, 0.0, 1e-20),
    ):
        case = subject(name, **sizes)
        chance = _likeliest(case, np.zeros(case.dim, np.float32), task_for(case.scheme, 0))
        assert least <= chance <= most
