"""The checks of an audit, in order: a new one is added here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sqsgd.audit.central import central_checks
from sqsgd.audit.distinguishing import listed_ratio, lower_bounds, sampled_ratio, tallies
from sqsgd.audit.findings import Audit, Finding, skipped
from sqsgd.audit.goodness_of_fit import law_of_codes, law_of_outputs, law_of_sparse_codes
from sqsgd.audit.messages import guessed_directions, message_checks
from sqsgd.audit.noise import noise_checks
from sqsgd.audit.subject import Subject
from sqsgd.core.codec import MalformedReport
from sqsgd.mechanisms.sparse import SparseMatches

_PICTURES = "pictures from one report"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A group of checks, and the name shown while they run."""

    name: str
    run: Callable[[Subject], Iterator[Finding]]

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Run the checks; a scheme that cannot open its own messages fails any of them."""
        try:
            yield from self.run(subject)
        except MalformedReport as error:
            yield Finding(
                check="message",
                name=f"own messages, in {self.name}",
                outcome="violated",
                sentence=f"The scheme rejects a message that it encoded itself: {error}.",
            )


def steps(subject: Subject, *, inversion: bool = True) -> tuple[Step, ...]:
    """The steps that apply to a scheme's guarantee; ``inversion`` takes about a minute and needs torch."""
    notion, sparse = subject.scheme.privacy.notion, isinstance(subject.scheme.mechanism, SparseMatches)
    if notion == "none":
        nothing = f"{subject.name} has no guarantee, so there is nothing to break."
        by_notion = [Step(name="guarantee", run=_left_out("ratio", "promise", nothing))]
    elif notion == "central":
        by_notion = [Step(name="the sum of reports", run=central_checks)]
    else:
        by_notion = [
            Step(name="likelihood ratios, small budgets", run=listed_ratio),
            Step(name="likelihood ratios, real budget", run=sampled_ratio),
            Step(name="distinguishing reports", run=lower_bounds),
            Step(name="tally of all pairs", run=tallies),
            Step(name="distribution of all outputs", run=law_of_outputs),
            Step(name="distribution of the codes", run=law_of_sparse_codes if sparse else law_of_codes),
        ]
    return (
        *by_notion,
        Step(name="noise", run=noise_checks),
        Step(name="messages", run=message_checks),
        Step(name="directions", run=guessed_directions),
        Step(
            name="pictures",
            run=_inversion if inversion else _left_out("reconstruct", _PICTURES, "Skipped as requested."),
        ),
    )


def audit(subject: Subject, *, inversion: bool = True) -> Audit:
    """Run every check that applies.

    Args:
        subject: The scheme and the sizes of its audit.
        inversion: Also try to recover pictures from a report.

    Returns:
        All findings. The guarantee is broken if any of them is violated.

    Guarantees
    ----------
    * All correct schemes pass: tests/audit/test_audit.py::test_correct_schemes_pass.
    * Mechanisms and generators that are broken on purpose are caught, each by the check designed for it:
      tests/audit/test_audit_mutants.py, tests/audit/test_sparse_mutants.py.
    * False alarms have probability 1e-6 for each goodness-of-fit test (findings.SIGNIFICANCE), at most
      0.001 for all lower bounds on ε together (distinguishing.CONFIDENCE), 0.001 for the tallies
      (distinguishing.FALSE_ALARM) and 1e-6 for the largest cosines (messages.CHANCE):
      tests/audit/test_goodness_of_fit.py, tests/audit/test_distinguishing.py, tests/audit/test_attackers.py.

    >>> from functools import partial
    >>> from sqsgd.schemes import make_scheme
    >>> subject = Subject(name="fedsgd", make=partial(make_scheme, "fedsgd"), dim=8)
    >>> found = audit(subject, inversion=False)
    >>> found.result, found.passed
    ('nothing to audit', False)
    """
    found = [finding for step in steps(subject, inversion=inversion) for finding in step.findings(subject)]
    return gathered(subject, found)


def gathered(subject: Subject, findings: Iterable[Finding]) -> Audit:
    """The audit made of these findings."""
    scheme = subject.scheme
    return Audit(
        scheme=subject.name,
        dim=subject.dim,
        epsilon=scheme.privacy.epsilon,
        notion=scheme.privacy.notion,
        message_bytes=scheme.bits // 8,
        trials=subject.trials,
        seed=subject.seed,
        findings=tuple(findings),
    )


def _left_out(check: str, name: str, reason: str) -> Callable[[Subject], Iterator[Finding]]:
    return lambda _subject: iter([skipped(check, name, reason)])


def _inversion(subject: Subject) -> Iterator[Finding]:
    try:
        from sqsgd.audit.inversion import inverted_gradients

        yield from inverted_gradients(subject)
    except ModuleNotFoundError as error:
        yield skipped("reconstruct", _PICTURES, f"{error.name} is not installed: pip install 'sqsgd[train]'.")
    except (FileNotFoundError, ValueError) as error:  # no data set, or no parameters for the model's length
        yield skipped("reconstruct", _PICTURES, f"{error}.")
