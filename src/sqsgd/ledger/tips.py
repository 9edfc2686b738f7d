"""Witnesses to a ledger: small files that say how far it had come, so that an older copy is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqsgd.ledger.history import MOST_LINE, START, History, sealed, unsealed
from sqsgd.ledger.refusals import LedgerDamaged, LedgerRolledBack


@dataclass(frozen=True, kw_only=True)
class Tip:
    """How far a ledger had come."""

    path: Path
    ledger: str
    """The ledger's own random name."""
    at: str
    """Where the ledger was created."""
    lines: int
    digest: str
    """Of the last of the lines."""


def tip_line(history: History) -> bytes:
    """What a tip of this history holds."""
    heading = history.heading
    fields = {"tip of": heading["ledger"], "at": heading["path"], "lines": history.lines}
    return sealed({**fields, "last": history.digest.decode()}, START)


def read_tip(path: Path) -> Tip | None:
    """The tip in a file; None where there is no file."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_LINE + 1)
    except FileNotFoundError:
        return None
    try:
        fields, _ = unsealed(content, START)
        return Tip(
            path=path,
            ledger=fields["tip of"],
            at=fields["at"],
            lines=fields["lines"],
            digest=fields["last"],
        )
    except (ValueError, KeyError, TypeError):
        raise LedgerDamaged(f"{path}: the ledger's tip is damaged") from None


def check(path: Path, history: History, stopped: str, left_over: int, tips: list[Tip]) -> None:
    """Refuse a ledger that is damaged, or older than its tips, or they than it.

    ``left_over`` bytes follow the lines of the history, and ``stopped`` says why they are no line. Only
    what the tips do not know of may be so: a line that a crash cut off.
    """
    reached = f"{history.lines} line{'s'[: history.lines != 1]} ({history.length} bytes)"
    for tip in tips:
        if history.lines < tip.lines:
            if left_over:
                raise LedgerDamaged(f"{path}: line {history.lines + 1} (byte {history.length}) {stopped}")
            raise LedgerRolledBack(
                f"{path} ends after {reached}, but {tip.path} knows of {tip.lines}: "
                "an older copy was put back, or the end is cut off"
            )
    if left_over > MOST_LINE:
        raise LedgerDamaged(f"{path}: line {history.lines + 1} (byte {history.length}) {stopped}")
    for tip in tips:
        behind = history.lines - tip.lines
        if tip.ledger != history.heading["ledger"]:
            raise LedgerRolledBack(f"{tip.path} belongs to another ledger than {path}")
        if behind > (0 if left_over else 1):
            raise LedgerRolledBack(
                f"{tip.path} knows of {tip.lines} lines, but {path} has {reached}: "
                "an older copy of the former was put back"
            )
        if tip.digest.encode() != (history.digest_before if behind else history.digest):
            raise LedgerRolledBack(
                f"{path}: line {tip.lines} is another one than {tip.path} knows: one of them was put back"
            )
