"""How much one report reveals of a vector's direction, against the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.subject import Subject, cosine, forward, preimage, task_for
from sqsgd.privacy.reconstruction import reconstruction_bound

CHANCE = 1e-6
"""The probability that the largest cosine of all trials exceeds its bound although ε is correct."""
_BLOCK, _FULL = "direction of what is sent", "direction of the whole vector"


def promised_of_vector(subject: Subject) -> float:
    """ε of one report for the whole vector against the server; infinite without a local guarantee."""
    privacy = subject.scheme.privacy
    if privacy.notion == "per-weight":
        return privacy.epsilon * subject.scheme.mechanism.dim
    return privacy.epsilon if privacy.notion == "local" else math.inf


def guessed_directions(subject: Subject) -> Iterator[Finding]:
    """The decoded report as a guess at the direction, for random vectors."""
    scheme = subject.scheme
    count = max(50, subject.trials // 100)
    if scheme.transforms and scheme.mechanism.dim > 1:
        cosines = _block_cosines(subject, count)
        if cosines is None:
            yield skipped("reconstruct", _BLOCK, "Vectors are padded, so the block is the whole vector.")
        else:
            yield _finding(subject, _BLOCK, cosines, scheme.mechanism.dim)
    if scheme.dim > 1:
        yield _finding(subject, _FULL, _full_cosines(subject, count), scheme.dim)


def _block_cosines(subject: Subject, count: int) -> list[float] | None:
    """For blocks of uniform direction, made from vectors that the transforms map to exactly these blocks."""
    scheme, numbers, rng = subject.scheme, subject.numbers("block"), subject.noise()
    # The length of a unit vector's block.
    length = math.sqrt(scheme.mechanism.dim / scheme.dim) if scheme.sends_block else 1.0
    cosines = []
    for client in range(count):
        y = numbers.standard_normal(scheme.mechanism.dim).astype(np.float32)
        y *= np.float32(length / np.linalg.norm(y))
        task = task_for(scheme, subject.seed, client=client)
        x = preimage(scheme, y, task)
        if client == 0 and cosine(forward(scheme, x, task), y) < 1 - 1e-6:
            return None
        columns = scheme.open(scheme.encode(x, task, rng), task)
        cosines.append(cosine(scheme.mechanism.estimate(columns, task.bound), y))
    return cosines


def _full_cosines(subject: Subject, count: int) -> list[float]:
    scheme, numbers, rng = subject.scheme, subject.numbers("full"), subject.noise()
    cosines = []
    for client in range(count):
        x = numbers.standard_normal(scheme.dim, np.float32)
        x /= np.float32(np.linalg.norm(x))
        task = task_for(scheme, subject.seed, client=client)
        cosines.append(cosine(scheme.decode(scheme.encode(x, task, rng), task), x))
    return cosines


def _finding(subject: Subject, name: str, cosines: list[float], dimensions: int) -> Finding:
    epsilon, largest, mean = promised_of_vector(subject), max(cosines), sum(cosines) / len(cosines)
    bound = reconstruction_bound(epsilon, dimensions, CHANCE / len(cosines))
    sentence = (
        f"Over {len(cosines)} random vectors, the largest cosine of the decoded report with the truth is "
        f"{largest:.4f} ({mean:.4f} on average)"
    )
    details = {"mean": mean, "dimensions": dimensions}
    if bound >= 1.0:
        reason = "one report has no guarantee" if epsilon == math.inf else "the bound is vacuous"
        return Finding(
            check="reconstruct",
            name=name,
            outcome="not applicable",
            measured=largest,
            limit=1.0,
            sentence=f"{sentence}; {reason}.",
            details=details,
        )
    return judged(
        "reconstruct",
        name,
        measured=largest,
        limit=bound,
        sentence=f"{sentence}; no attacker may exceed {bound:.4f} in {dimensions:,} dimensions.",
        details=details,
    )
