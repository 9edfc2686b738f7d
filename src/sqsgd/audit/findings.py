"""The result of an audit, one finding per check, and its files: an HTML page and the numbers as JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sqsgd._internal.files import known, write_atomically
from sqsgd.core import Notion
from sqsgd.report.page import render

SIGNIFICANCE = 1e-6  # a goodness-of-fit test fails if its p-value is below this
Outcome = Literal["passed", "violated", "not applicable"]
_SCOPES = {
    "central": " The guarantee covers the sum of all reports under secure aggregation; one report has none.",
    "record": " The guarantee is for single records; it does not hide what they have in common.",
}
_KINDS = {
    "ratio": "Likelihood ratios: does any message distinguish two inputs better than epsilon allows?",
    "distinguish": "Distinguishing: what lower bound on epsilon do real messages give?",
    "tally": "Tally: does any pair of many inputs give any output too differently, by counts alone?",
    "law": "Goodness of fit: do reports have the distribution that the proof assumes?",
    "noise": "Noise: does it come from the operating system, and is it never reused?",
    "message": "Messages: do they contain anything besides the private codes?",
    "reconstruct": "Reconstruction: how much of a gradient does one message reveal?",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check. The guarantee is violated where ``measured`` exceeds ``limit``."""

    check: str  # its kind: a key of _KINDS
    name: str
    outcome: Outcome
    sentence: str
    measured: float | None = None
    limit: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = {name: known(value) for name, value in vars(self).items()}
        return {**values, "details": {name: known(value) for name, value in self.details.items()}}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All findings about one scheme at one budget."""

    scheme: str
    dim: int
    epsilon: float  # of one report
    notion: Notion
    message_bytes: int
    trials: int
    seed: int
    findings: tuple[Finding, ...]

    @property
    def violated(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.outcome == "violated")

    @property
    def result(self) -> Literal["kept", "broken", "nothing to audit"]:
        if self.violated:
            return "broken"
        tried = any(finding.outcome == "passed" for finding in self.findings)
        return "kept" if tried and self.notion != "none" else "nothing to audit"

    @property
    def passed(self) -> bool:
        """The guarantee withstood every check. A scheme without a guarantee does not pass."""
        return self.result == "kept"

    @property
    def verdict(self) -> str:
        tried = sum(finding.outcome != "not applicable" for finding in self.findings)
        if self.violated:
            names = "; ".join(finding.name for finding in self.violated)
            return f"{len(self.violated)} of {tried} checks broke the guarantee: {names}."
        if self.passed:
            return f"{tried} checks tried to break the guarantee and none did.{_SCOPES.get(self.notion, '')}"
        nothing = f"NOTHING TO AUDIT: {self.scheme} has no privacy guarantee."
        return f"{nothing} This is not a pass: its reports protect nobody."

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = {**vars(self), "result": self.result, "passed": self.passed, "verdict": self.verdict}
        findings = [finding.to_dict() for finding in self.findings]
        return {**{name: known(value) for name, value in values.items()}, "findings": findings}


def shown(value: float | None) -> str:
    return "" if value is None else "infinite" if value == math.inf else f"{value:.5g}"


def judged(
    check: str, name: str, sentence: str, measured: float, limit: float, slack: float = 0.0, **details: object
) -> Finding:
    """Return a check that passes where ``measured`` is at most ``limit + slack``."""
    outcome: Outcome = "passed" if measured <= limit + slack else "violated"
    return Finding(check, name, outcome, sentence, float(measured), float(limit), details)


def by_test(name: str, sentence: str, test: tuple[float, int], check: str = "law") -> Finding:
    """Return the finding of a test from its p-value and degrees of freedom."""
    p_value, freedom = test
    with np.errstate(divide="ignore"):
        measured = abs(float(np.log10(p_value)))
    sentence = f"{sentence}: p = {p_value:.2g} (fails below {SIGNIFICANCE:g})."
    return judged(check, name, sentence, measured, -math.log10(SIGNIFICANCE), p=p_value, freedom=freedom)


def skipped(check: str, name: str, sentence: str) -> Finding:
    return Finding(check=check, name=name, outcome="not applicable", sentence=sentence)


def write_audit(audit: Audit, folder: str | Path) -> list[Path]:
    """Write audit.html and audit.json, and return their paths."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = {"audit.html": page(audit).encode(), "audit.json": json.dumps(audit.to_dict(), indent=2).encode()}
    for name, content in files.items():
        write_atomically(target / name, content)
    return [target / name for name in files]


def page(audit: Audit) -> str:
    kinds: dict[str, list[Finding]] = {}
    for finding in audit.findings:
        kinds.setdefault(_KINDS.get(finding.check, finding.check), []).append(finding)
    return render(
        Path(__file__).with_name("audit.html"),
        title=f"Audit of {audit.scheme}",
        kind="audit",
        audit=audit,
        guarantee="none" if audit.notion == "none" else f"epsilon {audit.epsilon:,.12g} ({audit.notion})",
        kinds=kinds,
        shown=shown,
    )
