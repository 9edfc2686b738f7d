"""The steps of an audit: which ones apply, and what ends one."""

import sys

import pytest
from subjects import subject

from sqsgd import MalformedReport, make_scheme
from sqsgd.audit import checklist, steps
from sqsgd.audit.subject import Subject


def test_a_scheme_that_refuses_its_own_messages_is_caught():
    def refuse(_subject):
        yield from ()
        raise MalformedReport("checksum", "the report is damaged")

    (finding,) = checklist.Step(name="noise", run=refuse).findings(subject("sqsgd"))
    assert finding.outcome == "violated"
    assert "damaged" in finding.sentence


def test_inversion_is_skipped_with_a_reason(monkeypatch):
    step = steps(subject("sqsgd"))[-1]
    monkeypatch.setitem(sys.modules, "sqsgd.audit.inversion", None)
    (finding,) = step.run(subject("sqsgd"))
    assert finding.outcome == "not applicable"
    assert "sqsgd[train]" in finding.sentence


@pytest.mark.parametrize(
    ("name", "first", "count"),
    [
        ("sqsgd", "likelihood ratios, small budgets", 10),
        ("cpsgd", "the sum of reports", 5),
        ("fedsgd", "guarantee", 5),
    ],
)
def test_the_steps_depend_on_the_guarantee(name, first, count):
    tried = steps(subject(name))
    assert (tried[0].name, len(tried)) == (first, count)
    assert [step.name for step in tried[-4:]] == ["noise", "messages", "directions", "pictures"]
    (left_out,) = steps(subject(name), inversion=False)[-1].findings(subject(name))
    assert left_out.sentence == "Skipped as requested."


def test_inversion_is_skipped_without_parameters_for_the_model():
    """The model's gradient is longer than this scheme supports."""
    pytest.importorskip("torch")

    def make(*, dim, epsilon, bytes):
        if dim > 1000:
            raise ValueError(f"dim = {dim} is too long")
        return make_scheme("sqsgd", dim=dim, epsilon=epsilon, bytes=bytes)

    case = Subject(name="short", make=make, dim=1000, epsilon=100.0, bits=512)
    (finding,) = steps(case)[-1].findings(case)
    assert finding.outcome == "not applicable"
    assert finding.sentence.endswith(" is too long.")
