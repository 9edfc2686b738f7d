"""A ledger's files: what is written in which order, so that no crash and no older copy counts too little.

Two files: the ledger, one sealed line a report (history.py), and its tip, ``<ledger>.tip``, which says
how many lines there are and how the last one is sealed. A spend writes, in this order, each on the disk
before the next begins:

    1. the line, at the ledger's end;
    2. the new tip, in a file of its own, which then replaces the old one;

and only then returns, so only then may the report leave. Never too little is counted, because

* a report left only after its tip was on the disk, and a ledger is refused unless it holds all the lines
  that its tip knows, unchanged: all those reports are counted;
* a crash before 1 is done leaves part of a line that no tip knows: no report left, and it is dropped;
* a crash between 1 and 2 leaves a line that the tip does not know yet: it counts as spent, and before
  the next line is written the tip is brought up to date. So a ledger is one line ahead of its tip at
  most, and no crash leaves one that is refused.

An older copy of the ledger holds fewer lines than the tip knows; an older tip is two or more lines behind
(or one, which loses nothing). Both are refused. What cannot be seen: both files put back together, or
copied and spent from twice; and a forger, for there is no key that the owner of the disk could not read.
Against the first two, ``witness`` names another tip, on another disk, which is written and checked the
same way. A process that keeps the ledger open knows its end by heart and is not deceived either.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

from sqsgd.files import durable
from sqsgd.ledger.history import START, Fields, History, sealed
from sqsgd.ledger.refusals import LedgerDamaged, LedgerRolledBack
from sqsgd.ledger.tips import Tip, check, read_tip, tip_line


def tip_beside(path: Path) -> Path:
    """Where a ledger's own tip is."""
    return path.with_name(path.name + ".tip")


def create_files(path: Path, heading: Fields) -> None:
    """A new ledger; refuses where there is or was one.

    The tips come first: a ledger without one was never finished by us, and one whose tip knows nothing
    but its heading has let no report leave, so that a new one may take its place.
    """
    history = History()
    history.add(line := sealed(heading, START))
    witness = heading["witness"]
    tips = [tip_beside(path), *([] if witness is None else [Path(witness)])]
    with durable.locked(path.parent, os.O_RDONLY):
        if path.exists():
            raise FileExistsError(f"{path} exists: open it, it cannot be made anew")
        for tip in tips:
            known = read_tip(tip)
            if known is not None and (known.lines > 1 or known.at != str(path)):
                raise LedgerRolledBack(f"{tip} is the tip of {known.at}, and knows of {known.lines} lines")
        for tip in tips:
            durable.put(durable.prepared(tip, tip_line(history)), tip)
        durable.put(durable.prepared(path, line), path)


@final
class LedgerFiles:
    """The files of one ledger, and what this process has read of them."""

    def __init__(self, path: Path, witness: Path | None) -> None:
        self.path, self._witness = path, witness
        self._history: History | None = None
        self._tips: list[Tip] = []
        self._left_over = 0
        self._known = 0  # lines that were seen, ever

    @contextlib.contextmanager
    def current(self, flags: int) -> Iterator[tuple[int, History]]:
        """The ledger, locked, and its history up to the file's end."""
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(durable.locked(self.path, flags))
            except FileNotFoundError:
                tip = read_tip(tip_beside(self.path))
                if tip is None:
                    raise
                raise LedgerRolledBack(
                    f"{self.path} is gone, but {tip.path} knows of {tip.lines} lines"
                ) from None
            # Kept only if all goes well; otherwise the next call reads everything again.
            history, self._history = self._history or History(), None
            self._catch_up(descriptor, history)
            self._history, self._known = history, history.lines
            yield descriptor, history

    def interrupted(self) -> str:
        """What a crash has left to be put right by the next line, in words; empty where nothing."""
        with self.current(os.O_RDONLY) as (_, history):
            if self._left_over:
                return f"{self._left_over} bytes of a line that was cut off before its report could leave"
            behind = [str(tip.path) for tip in self._tips if tip.lines < history.lines]
            return f"the last line counts, but is not yet known to {' and '.join(behind)}" if behind else ""

    def _catch_up(self, descriptor: int, history: History) -> None:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            size = os.fstat(descriptor).st_size
            stopped = "" if size < history.length else history.read(file)
        if size < history.length or history.lines < self._known:
            raise LedgerRolledBack(
                f"{self.path} has become shorter while it was open: an older copy was put back"
            )
        if not history.heading:
            raise LedgerDamaged(f"{self.path}: line 1 (byte 0) {stopped or 'is missing'}")
        witness = self._witness or history.heading["witness"]
        self._tips, self._left_over = [], size - history.length
        for path in [tip_beside(self.path), *([] if witness is None else [Path(witness)])]:
            tip = read_tip(path)
            if tip is None:
                raise LedgerDamaged(f"{path} is missing: without it an older copy of {self.path} would pass")
            self._tips.append(tip)
        check(self.path, history, stopped, self._left_over, self._tips)

    def append(self, descriptor: int, history: History, fields: Fields) -> None:
        """Write one more line; returns once it and the tips are on the disk."""
        self._history = None
        self._put_right(descriptor, history)
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
            with contextlib.suppress(OSError):  # the line then counts, or is seen to be cut off
                durable.cut_at(descriptor, start)
            raise
        # From here on a tip may know the line: it stays, whatever fails.
        for part, path in parts:
            durable.put(part, path)
        self._history, self._known = history, history.lines

    def _put_right(self, descriptor: int, history: History) -> None:
        """Do what a crash kept a spend from doing."""
        if self._left_over:
            durable.cut_at(descriptor, history.length)
        behind = [tip for tip in self._tips if tip.lines < history.lines]
        if behind:
            # Once more: its writer may have died before it was on the disk, or been told that it is not.
            start = history.length - history.last_length
            durable.write_at(descriptor, os.pread(descriptor, history.last_length, start), start)
        for tip in behind:
            durable.put(durable.prepared(tip.path, tip_line(history)), tip.path)
