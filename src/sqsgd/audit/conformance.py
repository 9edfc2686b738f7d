"""Another implementation's answers to the conformance vectors, compared with ours.

``python tools/conformance_vectors.py`` writes the vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "sqsgd conformance 1"
PATH = Path(__file__).parent / "vectors.json"
TOLERANCE = 1e-5
"""Estimates may differ by this share of the largest coordinate: nothing private depends on them."""
_CASES = {
    "messages": ("encode", "message"),
    "columns": ("decode", "columns"),
    "estimates": ("decode", "estimate"),
    "reasons": ("malformed", "reason"),
}  # where the vectors have the answers
SECTIONS = ("fingerprints", *_CASES)
"""The sections of an answer."""


@dataclass(frozen=True)
class Difference:
    """One answer that is not the expected one."""

    section: str
    id: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.section} {self.id}: no answer"
        return f"{self.section} {self.id}: expected {_short(self.expected)}, found {_short(self.found)}"


@dataclass(frozen=True)
class Comparison:
    """How many answers agree, which differ, and which sections were left out."""

    agree: int = 0
    differences: list[Difference] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    @property
    def conforms(self) -> bool:
        """Everything that was answered is right, and something was."""
        return self.agree > 0 and not self.differences


def read_vectors() -> dict[str, Any]:
    """The packaged vectors."""
    return json.loads(PATH.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def read_answers(path: Path) -> dict[str, Any]:
    """Answers from a file; ValueError says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object with the sections {', '.join(SECTIONS)}")
    if found.pop("format", FORMAT) != FORMAT:
        raise ValueError(f"{path} answers another version of the vectors; this one is {FORMAT!r}")
    unknown = sorted(set(found) - set(SECTIONS))
    if unknown:
        raise ValueError(f"{path}: unknown section {unknown[0]!r}; known are {', '.join(SECTIONS)}")
    for name, answers in found.items():
        if not isinstance(answers, dict):
            raise ValueError(f"{path}: section {name!r} must be an object with an answer for each id")
    return found


def expected_answers(vectors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The right answers, by section and id."""
    expected: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for group in vectors["groups"]:
        expected["fingerprints"][group["name"]] = group["fingerprint"]
        for section, (cases, answer) in _CASES.items():
            expected[section] |= {case["id"]: case[answer] for case in group[cases]}
    return expected


def compare(answers: Mapping[str, Any], vectors: Mapping[str, Any]) -> Comparison:
    """All differences. A section may be left out, but within a section no answer may be missing."""
    agree, differences, unanswered = 0, [], []
    for section, expected in expected_answers(vectors).items():
        if section not in answers:
            unanswered.append(section)
            continue
        found = answers[section]
        same = _close if section == "estimates" else _equal
        wrong = [name for name, value in expected.items() if not same(value, found.get(name))]
        agree += len(expected) - len(wrong)
        differences += [Difference(section, name, expected[name], found.get(name)) for name in wrong]
        unknown = sorted(found.keys() - expected.keys())
        differences += [Difference(section, name, "no such id", found[name]) for name in unknown]
    return Comparison(agree, differences, unanswered)


def _equal(expected: Any, found: Any) -> bool:
    return type(expected) is type(found) and bool(expected == found)


def _close(expected: list[float], found: Any) -> bool:
    if not isinstance(found, list) or not all(isinstance(value, int | float) for value in found):
        return False
    most = TOLERANCE * max(map(abs, expected))
    pairs = zip(expected, found, strict=False)
    return len(found) == len(expected) and all(abs(one - other) <= most for one, other in pairs)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
