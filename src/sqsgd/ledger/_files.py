"""A ledger's files: the order of writes ensures that neither a crash nor an older copy can undercount.

A ledger has two files: the ledger itself, one chained line per report (_history.py), and its tip,
``<ledger>.tip``, which records the number of lines and the digest of the last one. A spend writes the
following, each on disk before the next begins:

    1. the line, at the ledger's end;
    2. the new tip, as a separate file, which then replaces the old one;

and returns only then, so a report leaves only then. Every report that left is counted, because

* it left only after its tip was on disk, and a ledger is refused unless it holds all the lines that its tip
  records, unchanged;
* a crash during 1 leaves a torn line that no tip records: no report left, and the line is dropped;
* a crash between 1 and 2 leaves a line that the tip does not record yet: it counts as spent, and the tip is
  updated before the next line is written. So a ledger is at most one line ahead of its tip, and no crash
  leaves a ledger that is refused.

An older copy of the ledger has fewer lines than the tip records, and is refused. An older tip is behind the
ledger: two or more lines behind it is refused; one line behind it is what a crash leaves, and loses nothing,
because the ledger's last line counts. Not detected: both files restored together, or copied and
spent from twice; and forgery, for there is no key that the owner of the disk could not read. Against the
first two, ``witness`` names a second tip on another disk, which is written and checked the same way. A
process that keeps the ledger open also remembers the last line that it saw.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

from sqsgd.files import durable
from sqsgd.ledger._history import START, Fields, History, sealed
from sqsgd.ledger.refusals import LedgerDamaged, LedgerRolledBack
from sqsgd.ledger.tips import Tip, check_tips, read_tip, tip_line, tip_path


def create_files(path: Path, heading: Fields) -> None:
    """Write a new ledger; refuses to replace an existing or a lost one.

    The tips are written first, so a ledger always has one. If a tip records the heading alone, no report
    left, and a new ledger may replace the lost one.
    """
    history = History()
    history.add(line := sealed(heading, START))
    witness = heading["witness"]
    tips = [tip_path(path), *([] if witness is None else [Path(witness)])]
    with durable.locked(path.parent, os.O_RDONLY):
        if path.exists():
            raise FileExistsError(f"{path} exists: open it; it cannot be created again")
        for tip in tips:
            known = read_tip(tip)
            if known is not None and (known.lines > 1 or known.at != str(path)):
                raise LedgerRolledBack(f"{tip} is the tip of {known.at}, and records {known.lines} lines")
        for tip in tips:
            durable.put(durable.prepared(tip, tip_line(history)), tip)
        durable.put(durable.prepared(path, line), path)


@final
class LedgerFiles:
    """The files of one ledger, and what this process has read from them."""

    def __init__(self, path: Path, witness: Path | None) -> None:
        self.path, self._witness = path, witness
        self._history: History | None = None
        self._tips: list[Tip] = []
        self._torn = 0
        self._known = 0  # the most lines ever seen

    @contextlib.contextmanager
    def current(self, flags: int) -> Iterator[tuple[int, History]]:
        """Lock the ledger; yields it with its history up to the file's end."""
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(durable.locked(self.path, flags))
            except FileNotFoundError:
                tip = read_tip(tip_path(self.path))
                if tip is None:
                    raise
                raise LedgerRolledBack(
                    f"{self.path} is missing, but {tip.path} records {tip.lines} lines"
                ) from None
            # Dropped on any error: the next call then reads the whole file again.
            history, self._history = self._history or History(), None
            self._catch_up(descriptor, history)
            self._history, self._known = history, history.lines
            yield descriptor, history

    def interrupted(self) -> str:
        """What a crash left unfinished, to be repaired by the next line; empty if nothing."""
        with self.current(os.O_RDONLY) as (_, history):
            if self._torn:
                return f"{self._torn} bytes of a line that was cut off before its report could leave"
            behind = [str(tip.path) for tip in self._tips if tip.lines < history.lines]
            return (
                f"the last line counts, but is not yet recorded in {' and '.join(behind)}" if behind else ""
            )

    def _catch_up(self, descriptor: int, history: History) -> None:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            size = os.fstat(descriptor).st_size
            problem = "" if size < history.length else history.read(file)
        if size < history.length or history.lines < self._known:
            raise LedgerRolledBack(
                f"{self.path} has become shorter while it was open: an older copy was restored"
            )
        if not history.heading:
            raise LedgerDamaged(f"{self.path}: line 1 (byte 0) {problem or 'is missing'}")
        witness = self._witness or history.heading["witness"]
        self._tips, self._torn = [], size - history.length
        for path in [tip_path(self.path), *([] if witness is None else [Path(witness)])]:
            tip = read_tip(path)
            if tip is None:
                raise LedgerDamaged(
                    f"{path} is missing: without it an older copy of {self.path} would not be detected"
                )
            self._tips.append(tip)
        check_tips(self.path, history, problem, self._torn, self._tips)

    def append(self, descriptor: int, history: History, fields: Fields) -> None:
        """Write one more line; returns once it and the tips are on disk."""
        self._history = None
        self._repair(descriptor, history)
        start = history.length
        line = sealed({"line": history.lines + 1, **fields}, history.digest)
        history.add(line)
        content, parts = tip_line(history), []
        try:
            durable.write_at(descriptor, line, start)
            for tip in self._tips:
                parts.append((durable.prepared(tip.path, content), tip.path))  # noqa: PERF401
        except BaseException:
            for part, _ in parts:
                part.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the line then counts, or is found torn
                durable.cut_at(descriptor, start)
            raise
        # From here on a tip may record the line: it stays, whatever fails.
        for part, path in parts:
            durable.put(part, path)
        self._history, self._known = history, history.lines

    def _repair(self, descriptor: int, history: History) -> None:
        """Finish what a crash interrupted."""
        if self._torn:
            durable.cut_at(descriptor, history.length)
        behind = [tip for tip in self._tips if tip.lines < history.lines]
        if behind:
            # Write it again: its writer may have died before it was on disk, or the sync may have failed.
            start = history.length - history.last_length
            durable.write_at(descriptor, os.pread(descriptor, history.last_length, start), start)
        for tip in behind:
            durable.put(durable.prepared(tip.path, tip_line(history)), tip.path)
