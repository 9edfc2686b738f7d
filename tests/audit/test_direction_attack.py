"""How much a report reveals of a direction: within the bound, or caught beyond it."""

import math
from dataclasses import dataclass, replace

import pytest
from subjects import subject

from sqsgd import make_scheme
from sqsgd.audit.direction_attack import guessed_directions, promised_of_vector
from sqsgd.audit.subject import Subject
from sqsgd.core import Privacy
from sqsgd.schemes.clear import InClear

SENT, WHOLE = "direction of what is sent", "direction of the whole vector"


@dataclass(frozen=True, kw_only=True)
class Pretending(InClear):
    """Sends the vector unchanged and claims privacy."""

    @property
    def privacy(self):
        return Privacy(epsilon=2.0, notion="local")


def found(case):
    return {finding.name: finding for finding in guessed_directions(case)}


def test_a_vector_in_clear_is_beyond_every_bound():
    def make(*, dim, epsilon, bytes):
        return replace(make_scheme("fedsgd", dim=dim), mechanism=Pretending(dim=dim))

    finding = found(Subject(name="pretending", make=make, dim=500, trials=1000))[WHOLE]
    assert finding.outcome == "violated"
    assert finding.measured == pytest.approx(1.0)
    assert finding.limit < 0.5


def test_blocks_and_whole_vectors_are_guessed_separately():
    """The block is recovered better than the whole vector, both within their bounds."""
    findings = found(subject("sqsgd"))
    assert {name: finding.outcome for name, finding in findings.items()} == {SENT: "passed", WHOLE: "passed"}
    assert 0 < findings[WHOLE].details["mean"] < findings[SENT].details["mean"]
    assert findings[SENT].details["dimensions"] == 512
    assert findings[WHOLE].details["dimensions"] == 1000


def test_schemes_without_a_guarantee_have_no_bound():
    finding = found(subject("fedsgd"))[WHOLE]
    assert (finding.outcome, finding.limit) == ("not applicable", 1.0)
    assert finding.sentence.endswith("one report has no guarantee.")
    padded = found(subject("sqsgd", dim=300, epsilon=400.0))[SENT]
    assert padded.outcome == "not applicable"
    assert padded.sentence == "Vectors are padded, so the block is the whole vector."


@pytest.mark.parametrize(
    ("name", "options", "promised"),
    [
        ("sqsgd", {}, 100.0),
        ("ldp-fl", {"per_weight": True}, 100.0 * 512),
        ("cpsgd", {}, math.inf),
        ("fedsgd", {}, math.inf),
    ],
)
def test_epsilon_of_the_whole_vector(name, options, promised):
    assert promised_of_vector(subject(name, options)) == pytest.approx(promised)
