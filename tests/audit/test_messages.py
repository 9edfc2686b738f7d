"""What an audit finds in messages, in noise and in sums of records; its own generator counts all draws."""

import os
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from subjects import caught, subject

from sqsgd import Rng, make_scheme, secure_rng, seeded_rng
from sqsgd.audit import Subject, steps
from sqsgd.audit.messages import guessed_directions, message_checks
from sqsgd.audit.noise import CountingRng, draw_in_every_setting, key_of, rounds_check
from sqsgd.core import Privacy, records
from sqsgd.mechanisms import discrete_gaussian
from sqsgd.schemes.clear import InClear

SENT, WHOLE = "direction of what is sent", "direction of the whole vector"
UNSENT = "coordinates that are not sent"


@pytest.mark.parametrize(
    ("name", "code", "tried", "skipped"),
    [
        ("sqsgd", "signs", 3, set()),
        ("sqsgd-stateless", "signs", 2, {UNSENT}),
        ("sqsgd", None, 2, {UNSENT}),
        ("vqsgd", None, 2, {UNSENT}),
        ("fedsgd", None, 1, set()),
        ("privunit", None, 2, {UNSENT}),
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


SEPARATED = "separation, budget 150"
STEP = "distinguishing records"


def make(**budget):
    return make_scheme("sqsgd-record", **budget)


def test_the_mechanism_passes():
    case = subject("sqsgd-record", {}, budgets=(1.0,))
    (step,) = (step for step in steps(case) if step.name == STEP)
    found = list(step.findings(case))
    assert [each.outcome for each in found] == 5 * ["passed"]
    separation = found[-1]
    assert separation.measured > 0.9 * separation.limit  # the attack is as good as the guarantee allows


@pytest.mark.parametrize("share", [0.8, 0.01])
def test_too_little_noise_is_caught(monkeypatch, share):
    right = discrete_gaussian.discrete_gaussian
    monkeypatch.setattr(discrete_gaussian, "discrete_gaussian", lambda square: right(int(share * square)))
    assert SEPARATED in caught(make, STEP, trials=1000)


def test_noise_on_some_coordinates_is_caught(monkeypatch):
    right = discrete_gaussian.DiscreteGaussian.draw

    def draw(self, count, rng):
        noise = right(self, count, rng)
        noise[::2] = 0
        return noise

    monkeypatch.setattr(discrete_gaussian.DiscreteGaussian, "draw", draw)
    assert SEPARATED in caught(make, STEP, trials=1000)


def test_records_that_are_not_clipped_are_caught(monkeypatch):
    def add(self, rows):
        rows = np.clip(np.nan_to_num(rows), -100, 100)
        self.total += np.rint(rows * self.reach / self.clip_norm).astype(np.int64).sum(axis=0)

    monkeypatch.setattr(records.RecordSum, "add", add)
    assert {"limit of one record", SEPARATED} <= caught(make, STEP, trials=1000)


def test_a_limit_that_rounding_exceeds_is_caught(monkeypatch):
    """The grid's reach leaves no room for rounding, and nobody counts the squares."""
    monkeypatch.setattr(records, "reach_of", lambda dim: float(records.REACH) + 1)
    monkeypatch.setattr(records, "REACH", records.REACH + 10)
    assert caught(make, STEP, trials=1000) == {"limit of one record"}
