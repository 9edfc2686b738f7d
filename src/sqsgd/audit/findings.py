"""What an audit found: one finding for each thing that it tried."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sqsgd.files.json_numbers import known

Outcome = Literal["passed", "violated", "not applicable"]
Result = Literal["kept", "broken", "nothing to audit"]
_SCOPES = {
    "central": " It is about the sum of all reports behind secure aggregation: one report promises nothing.",
    "per-weight": " It is about single weights: for the whole vector epsilon is as many times larger.",
}
Image = npt.NDArray[np.float64]
"""Rows of pixels from 0 (black) to 1 (white)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Likeness:
    """How near a recovered picture comes to the original: 1 and infinite decibels would be the same."""

    correlation: float
    structure: float
    decibels: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """One batch of pictures, and what an attacker made of its gradient: raw, and as it was reported."""

    title: str
    originals: tuple[Image, ...]
    from_gradient: tuple[Image, ...]
    from_report: tuple[Image, ...]
    gradient_likeness: tuple[Likeness, ...]
    report_likeness: tuple[Likeness, ...]
    blind_likeness: tuple[Likeness, ...]
    """Of what the same attack makes of a report about other pictures: what it owes to nobody."""
    report_cosine: float
    """Of the gradient that the server reads off the report with the true one, on what was sent."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was tried. ``measured`` breaks the promise where it exceeds ``limit``."""

    check: str
    """The kind of attempt: "ratio", "distinguish", "law", "reconstruct", "noise" or "message"."""
    name: str
    outcome: Outcome
    sentence: str
    measured: float | None = None
    limit: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[Pictures, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, for JSON; infinity as a word."""
        return {
            "check": self.check,
            "name": self.name,
            "outcome": self.outcome,
            "measured": known(self.measured),
            "limit": known(self.limit),
            "sentence": self.sentence,
            "details": {name: known(value) for name, value in self.details.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All findings about one scheme at one budget."""

    scheme: str
    dim: int
    epsilon: float
    """What one report promises."""
    notion: str
    message_bytes: int
    trials: int
    seed: int
    findings: tuple[Finding, ...]

    @property
    def violated(self) -> tuple[Finding, ...]:
        """What broke the promise."""
        return tuple(finding for finding in self.findings if finding.outcome == "violated")

    @property
    def result(self) -> Result:
        """A promise was broken, or none was made, or it was kept as far as was tried."""
        if self.violated:
            return "broken"
        tried = any(finding.outcome == "passed" for finding in self.findings)
        return "kept" if tried and self.notion != "none" else "nothing to audit"

    @property
    def passed(self) -> bool:
        """There is a promise, and nothing broke it; a scheme that promises nothing does not pass."""
        return self.result == "kept"

    @property
    def verdict(self) -> str:
        """In one sentence, or two."""
        broken, tried = len(self.violated), sum(f.outcome != "not applicable" for f in self.findings)
        if broken:
            names = "; ".join(finding.name for finding in self.violated)
            return f"{broken} of {tried} checks broke the promise: {names}."
        if self.result != "kept":
            return (
                f"NOTHING TO AUDIT: {self.scheme} promises nothing. "
                "This is not a pass: its reports protect nobody."
            )
        return f"{tried} checks tried to break the promise and none did.{_SCOPES.get(self.notion, '')}"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, for JSON; infinity as a word."""
        return {
            "scheme": self.scheme,
            "dim": self.dim,
            "epsilon": known(self.epsilon),
            "notion": self.notion,
            "message_bytes": self.message_bytes,
            "trials": self.trials,
            "seed": self.seed,
            "result": self.result,
            "passed": self.passed,
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def shown(value: float | None) -> str:
    """A number for people; nothing where there is none.

    >>> shown(0.25), shown(float("inf")), shown(None)
    ('0.25', 'infinite', '')
    """
    return "" if value is None else "infinite" if value == math.inf else f"{value:.5g}"


def verdict(measured: float, limit: float) -> Outcome:
    """Whether a measurement keeps its limit."""
    return "violated" if not measured <= limit else "passed"


def judged(
    check: str,
    name: str,
    sentence: str,
    *,
    measured: float,
    limit: float,
    details: Mapping[str, Any] | None = None,
) -> Finding:
    """A check whose outcome is whether what was measured keeps its limit."""
    return Finding(
        check=check,
        name=name,
        outcome=verdict(measured, limit),
        measured=float(measured),
        limit=float(limit),
        sentence=sentence,
        details=details or {},
    )


def skipped(check: str, name: str, sentence: str) -> Finding:
    """A check that cannot be made, and why."""
    return Finding(check=check, name=name, outcome="not applicable", sentence=sentence)
