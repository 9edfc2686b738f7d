"""The result of an audit: one finding per check, and the tests that decide it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sqsgd._internal.files import known
from sqsgd.core import Notion

SIGNIFICANCE = 1e-6
"""A goodness-of-fit test fails if its p-value is below this."""
Outcome = Literal["passed", "violated", "not applicable"]
Result = Literal["kept", "broken", "nothing to audit"]
_SCOPES = {
    "central": " The guarantee covers the sum of all reports under secure aggregation; one report has none.",
    "per-weight": " The guarantee is per weight; for the whole vector, multiply epsilon by the weights sent.",
}
_NUMBERS = ("scheme", "dim", "epsilon", "notion", "message_bytes", "trials", "seed")
Image = npt.NDArray[np.float64]
"""Rows of pixels from 0 (black) to 1 (white)."""


class Likeness(NamedTuple):
    """How close a recovered picture is to the original: correlation, and signal-to-noise ratio."""

    correlation: float
    decibels: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """One batch of pictures, and what an attacker recovered from its raw gradient and from its report."""

    title: str
    originals: tuple[Image, ...]
    from_gradient: tuple[Image, ...]
    from_report: tuple[Image, ...]
    gradient_likeness: tuple[Likeness, ...]
    report_likeness: tuple[Likeness, ...]
    blind: float
    """Correlation without the target's data: the same attack on a report about other pictures."""
    report_cosine: float
    """Cosine of the decoded with the true gradient, on the coordinates that were sent."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. The guarantee is violated where ``measured`` exceeds ``limit``."""

    check: str
    """The kind of check: "ratio", "distinguish", "tally", "law", "reconstruct", "noise" or "message"."""
    name: str
    outcome: Outcome
    sentence: str
    measured: float | None = None
    limit: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[Pictures, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, for JSON."""
        names = ("check", "name", "outcome", "measured", "limit", "sentence")
        details = {name: known(value) for name, value in self.details.items()}
        return {**{name: known(getattr(self, name)) for name in names}, "details": details}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All findings about one scheme at one budget."""

    scheme: str
    dim: int
    epsilon: float
    """The guarantee of one report."""
    notion: Notion
    message_bytes: int
    trials: int
    seed: int
    findings: tuple[Finding, ...]

    @property
    def violated(self) -> tuple[Finding, ...]:
        """The findings that violate the guarantee."""
        return tuple(finding for finding in self.findings if finding.outcome == "violated")

    @property
    def result(self) -> Result:
        """Whether the guarantee was broken, does not exist, or withstood every check."""
        if self.violated:
            return "broken"
        tried = any(finding.outcome == "passed" for finding in self.findings)
        return "kept" if tried and self.notion != "none" else "nothing to audit"

    @property
    def passed(self) -> bool:
        """The guarantee withstood every check; a scheme without a guarantee does not pass."""
        return self.result == "kept"

    @property
    def verdict(self) -> str:
        """The result in one or two sentences."""
        tried = sum(finding.outcome != "not applicable" for finding in self.findings)
        if self.violated:
            names = "; ".join(finding.name for finding in self.violated)
            return f"{len(self.violated)} of {tried} checks broke the guarantee: {names}."
        if self.passed:
            return f"{tried} checks tried to break the guarantee and none did.{_SCOPES.get(self.notion, '')}"
        nothing = f"NOTHING TO AUDIT: {self.scheme} has no privacy guarantee."
        return f"{nothing} This is not a pass: its reports protect nobody."

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, for JSON."""
        values = {name: known(getattr(self, name)) for name in (*_NUMBERS, "result", "passed", "verdict")}
        return {**values, "findings": [finding.to_dict() for finding in self.findings]}


def shown(value: float | None) -> str:
    """A number for display; empty for None.

    >>> shown(0.25), shown(float("inf")), shown(None)
    ('0.25', 'infinite', '')
    """
    return "" if value is None else "infinite" if value == math.inf else f"{value:.5g}"


def judged(
    check: str,
    name: str,
    sentence: str,
    measured: float,
    limit: float,
    *,
    slack: float = 0.0,
    **details: object,
) -> Finding:
    """A check that passes where ``measured`` is at most ``limit + slack``."""
    return Finding(
        check=check,
        name=name,
        outcome="passed" if measured <= limit + slack else "violated",
        measured=float(measured),
        limit=float(limit),
        sentence=sentence,
        details=details,
    )


def by_test(name: str, sentence: str, test: tuple[float, int], *, check: str = "law") -> Finding:
    """The finding of a test, by its p-value and degrees of freedom: p must be at least the significance."""
    p_value, freedom = test
    with np.errstate(divide="ignore"):
        measured = abs(float(np.log10(p_value)))
    sentence = f"{sentence}: p = {p_value:.2g} (fails below {SIGNIFICANCE:g})."
    limit = -math.log10(SIGNIFICANCE)
    return judged(check, name, sentence, measured, limit, p=p_value, freedom=freedom)


def skipped(check: str, name: str, sentence: str) -> Finding:
    """A check that does not apply, and why."""
    return Finding(check=check, name=name, outcome="not applicable", sentence=sentence)
