"""Tips: small files that record how long a ledger is, so that an older copy is detected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqsgd.ledger._history import MAX_LINE, START, History, sealed, unsealed
from sqsgd.ledger.refusals import LedgerDamaged, LedgerRolledBack


@dataclass(frozen=True, kw_only=True)
class Tip:
    """The length of a ledger and the digest of its last line."""

    path: Path
    ledger: str
    """The ledger's random identifier."""
    at: str
    """Where the ledger was created."""
    lines: int
    digest: str
    """Digest of the last line."""


def tip_path(ledger: Path) -> Path:
    """Where a ledger's own tip is."""
    return ledger.with_name(ledger.name + ".tip")


def tip_line(history: History) -> bytes:
    """The content of this history's tip."""
    heading = history.heading
    fields = {"tip of": heading["ledger"], "at": heading["path"], "lines": history.lines}
    return sealed({**fields, "last": history.digest.decode()}, START)


def read_tip(path: Path) -> Tip | None:
    """The tip in a file; None if there is no file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LINE + 1)
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


def check_tips(path: Path, history: History, problem: str, torn: int, tips: list[Tip]) -> None:
    """Refuse a ledger that is damaged or older than its tips, and tips that are older than the ledger.

    ``torn`` bytes follow the valid lines, and ``problem`` says why they are not a line. Only a line that no
    tip has recorded may be torn: a crash interrupted it.
    """
    reached = f"{history.lines} line{'s'[: history.lines != 1]} ({history.length} bytes)"
    for tip in tips:
        if history.lines < tip.lines:
            if torn:
                raise LedgerDamaged(f"{path}: line {history.lines + 1} (byte {history.length}) {problem}")
            raise LedgerRolledBack(
                f"{path} ends after {reached}, but {tip.path} records {tip.lines}: "
                "an older copy was restored, or the end was cut off"
            )
    if torn > MAX_LINE:
        raise LedgerDamaged(f"{path}: line {history.lines + 1} (byte {history.length}) {problem}")
    for tip in tips:
        behind = history.lines - tip.lines
        if tip.ledger != history.heading["ledger"]:
            raise LedgerRolledBack(f"{tip.path} belongs to a ledger other than {path}")
        if behind > (0 if torn else 1):
            raise LedgerRolledBack(
                f"{tip.path} records {tip.lines} lines, but {path} has {reached}: "
                "an older copy of the tip was restored"
            )
        if tip.digest.encode() != (history.digest_before if behind else history.digest):
            raise LedgerRolledBack(
                f"{path}: line {tip.lines} differs from the one in {tip.path}: one of the two was restored"
            )
