"""Answers to the conformance vectors, which tools/conformance_vectors.py writes, compared with ours."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "sqsgd conformance 1"
PATH = Path(__file__).parent / "vectors.json"
TOLERANCE = 1e-5  # of the largest coordinate, for estimates: nothing private depends on them
_CASES = {
    "messages": ("encode", "message"),
    "columns": ("decode", "columns"),
    "estimates": ("decode", "estimate"),
    "reasons": ("malformed", "reason"),
}  # where the vectors have the answers
SECTIONS = ("fingerprints", *_CASES)


@dataclass(frozen=True)
class Difference:
    """One answer that is not the expected one."""

    section: str
    id: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        answer = f"expected {json.dumps(self.expected):.80}, found {json.dumps(self.found):.80}"
        return f"{self.section} {self.id}: {'no answer' if self.found is None else answer}"


@dataclass(frozen=True)
class Comparison:
    """How many answers agree, which differ, and which sections were left out."""

    agree: int
    differences: list[Difference]
    unanswered: list[str]

    @property
    def conforms(self) -> bool:
        """Everything that was answered is right, and something was."""
        return self.agree > 0 and not self.differences


def read_vectors() -> dict[str, Any]:
    return json.loads(PATH.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def read_answers(path: Path) -> dict[str, Any]:
    """Answers from a file; ValueError names the error in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object with the sections {', '.join(SECTIONS)}")
    if found.pop("format", FORMAT) != FORMAT:
        raise ValueError(f"{path} answers another version of the vectors; this one is {FORMAT!r}")
    for name, answers in found.items():
        if name not in SECTIONS:
            raise ValueError(f"{path}: unknown section {name!r}; known are {', '.join(SECTIONS)}")
        if not isinstance(answers, dict):
            raise ValueError(f"{path}: section {name!r} must be an object with an answer for each id")
    return found


def expected_answers(vectors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    expected: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for group in vectors["groups"]:
        expected["fingerprints"][group["name"]] = group["fingerprint"]
        for section, (cases, answer) in _CASES.items():
            expected[section] |= {case["id"]: case[answer] for case in group[cases]}
    return expected


def compare(answers: Mapping[str, Any], vectors: Mapping[str, Any]) -> Comparison:
    """Return all differences. A section may be left out, but within a section no answer may be missing."""
    agree, differences, unanswered = 0, [], []
    for section, expected in expected_answers(vectors).items():
        if section not in answers:
            unanswered.append(section)
            continue
        found = answers[section]
        wrong = [name for name, value in expected.items() if not _same(section, value, found.get(name))]
        agree += len(expected) - len(wrong)
        differences += [Difference(section, name, expected[name], found.get(name)) for name in wrong]
        unknown = sorted(found.keys() - expected.keys())
        differences += [Difference(section, name, "no such id", found[name]) for name in unknown]
    return Comparison(agree, differences, unanswered)


def _same(section: str, expected: Any, found: Any) -> bool:
    if section != "estimates" or type(found) is not list or len(found) != len(expected):
        return type(expected) is type(found) and bool(expected == found)
    most = TOLERANCE * max(map(abs, expected))
    pairs = zip(expected, found, strict=True)
    return all(isinstance(other, int | float) and abs(one - other) <= most for one, other in pairs)
