"""How many rounds of a training moved the model, and why the others did not.

It needs no Flower: ``sqsgd deploy`` reads the same lines of ``metrics.jsonl``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

MOST_EMPTY_ROUNDS = 10


class NoAnswers(RuntimeError):
    """Too many rounds in a row without enough answers, or not one round with enough."""


class Tally:
    """The rounds of a training so far.

    Guarantees
    ----------
    * A training in which no round had enough answers fails, with the most frequent reason:
      tests/flower/test_round_tally.py::test_a_training_that_nobody_answered_fails.
    """

    def __init__(self) -> None:
        self.stepped = 0
        """Rounds with enough answers: only these move the model."""
        self.empty = 0
        """Rounds in a row without."""
        self.rounds = 0
        self.reasons: Counter[str] = Counter()

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> Tally:
        """The tally of recorded rounds."""
        tally = cls()
        for line in lines:
            # Versions without "stepped" moved the model on a single answer.
            stepped = line.get("stepped", line.get("clients", 0) > 0)
            tally.add(bool(stepped), line.get("rejected") or ())
        tally.empty = 0  # a resumed training has as many attempts as a new one
        return tally

    def add(self, stepped: bool, rejected: Iterable[Mapping[str, Any]]) -> None:
        """Count one round."""
        self.rounds += 1
        self.stepped += stepped
        self.empty = 0 if stepped else self.empty + 1
        self.reasons.update(str(entry.get("reason")) for entry in rejected)

    def totals(self, lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """The sums over all rounds, for a summary."""
        lines = list(lines)
        return {
            "answers": sum(line["clients"] for line in lines),
            "rejected": sum(len(line["rejected"]) for line in lines),
            "rounds_stepped": self.stepped,
            **{
                name: sum(line.get(name, 0) for line in lines)
                for name in ("bytes_up_total", "bytes_down_total")
            },
        }

    @property
    def problem(self) -> str:
        """Why nothing was trained; empty if the model moved, or there were no rounds."""
        if self.stepped or not self.rounds:
            return ""
        most = [f"; the most frequent reason: {reason}" for reason, _ in self.reasons.most_common(1)]
        return f"none of {self.rounds} rounds had enough answers, so nothing was trained{''.join(most)}"

    def check(self, last: str) -> None:
        """Raise NoAnswers after too many empty rounds; ``last`` describes the last one."""
        if self.empty >= MOST_EMPTY_ROUNDS:
            raise NoAnswers(
                f"{self.empty} rounds in a row had too few answers, the last one {last}: see the nodes' "
                "refusals.jsonl; their budgets may be spent"
            )

    def check_trained(self) -> None:
        """Raise NoAnswers at the end of a training that left the model unchanged."""
        if self.problem:
            raise NoAnswers(self.problem)
