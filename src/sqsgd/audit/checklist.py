"""The checks of an audit, in order: a new one is added here."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sqsgd.audit.distinguishing import central_checks, listed_ratio, lower_bounds, sampled_ratio, tallies
from sqsgd.audit.findings import Audit, Finding, judged, skipped
from sqsgd.audit.goodness_of_fit import law_of_codes, law_of_outputs, law_of_sparse_codes
from sqsgd.audit.messages import guessed_directions, message_checks
from sqsgd.audit.noise import noise_checks
from sqsgd.audit.records import record_checks
from sqsgd.audit.subject import Subject
from sqsgd.core.codec import MalformedReport
from sqsgd.mechanisms.sparse import SparseMatches


class Step(NamedTuple):
    """A group of checks, and the name shown while they run."""

    name: str
    run: Callable[[Subject], Iterable[Finding]]

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Run the checks. A scheme that cannot open its own messages fails any of them."""
        try:
            yield from self.run(subject)
        except MalformedReport as error:
            sentence = f"The scheme rejects a message that it encoded itself: {error}."
            yield judged("message", f"own messages, in {self.name}", sentence, 1, 0)


def steps(subject: Subject) -> tuple[Step, ...]:
    """Return the steps that apply to a scheme's guarantee."""
    notion, sparse = subject.scheme.privacy.notion, isinstance(subject.scheme.mechanism, SparseMatches)
    if notion == "none":
        sentence = f"{subject.name} has no guarantee to break."
        by_notion = [Step("guarantee", lambda _subject: [skipped("ratio", "promise", sentence)])]
    elif notion == "central":
        by_notion = [Step("the sum of reports", central_checks)]
    elif notion == "record":
        by_notion = [Step("distinguishing records", record_checks)]
    else:
        by_notion = [
            Step("likelihood ratios, small budgets", listed_ratio),
            Step("likelihood ratios, real budget", sampled_ratio),
            Step("distinguishing reports", lower_bounds),
            Step("tally of all pairs", tallies),
            Step("distribution of all outputs", law_of_outputs),
            Step("distribution of the codes", law_of_sparse_codes if sparse else law_of_codes),
        ]
    return (
        *by_notion,
        Step("noise", noise_checks),
        Step("messages", message_checks),
        Step("directions", guessed_directions),
    )


def audit(subject: Subject) -> Audit:
    """Run every check that applies. The guarantee is broken if any finding is violated.

    Guarantees
    ----------
    * All correct schemes pass: tests/audit/test_audit.py::test_correct_schemes_pass.
    * Each broken mechanism or generator is caught by its check: tests/audit/test_audit_mutants.py.
    * False alarms have the probabilities SIGNIFICANCE, 1 - CONFIDENCE, FALSE_ALARM and CHANCE:
      tests/audit/test_goodness_of_fit.py, tests/audit/test_distinguishing.py, tests/audit/test_attackers.py.
    """
    return gathered(subject, (finding for step in steps(subject) for finding in step.findings(subject)))


def gathered(subject: Subject, findings: Iterable[Finding]) -> Audit:
    return Audit(
        scheme=subject.name,
        dim=subject.dim,
        epsilon=subject.scheme.privacy.epsilon,
        notion=subject.scheme.privacy.notion,
        message_bytes=subject.scheme.bits // 8,
        trials=subject.trials,
        seed=subject.seed,
        findings=tuple(findings),
    )
