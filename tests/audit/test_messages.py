"""A message must not contain more than its columns, nor what correlates with the vector's direction."""

from dataclasses import dataclass, replace

import pytest
from subjects import subject

from sqsgd import make_scheme
from sqsgd.audit import Subject
from sqsgd.audit.messages import guessed_directions, message_checks
from sqsgd.core import Privacy
from sqsgd.schemes.clear import InClear

SENT, WHOLE = "direction of what is sent", "direction of the whole vector"
UNSENT, SAME = "coordinates that are not sent", "same codes, same bytes"


@pytest.mark.parametrize(
    ("name", "code", "tried", "skipped"),
    [
        ("sqsgd", "signs", 4, set()),
        ("sqsgd-stateless", "signs", 3, {UNSENT}),
        ("sqsgd", None, 2, {UNSENT, SAME}),
        ("vqsgd", None, 2, {UNSENT, SAME}),
        ("fedsgd", None, 1, set()),
        ("privunit", None, 2, {UNSENT, SAME}),
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
