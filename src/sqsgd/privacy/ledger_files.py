"""A ledger's files: the order of writes ensures that neither a crash nor an older copy can undercount.

A spend writes a chained line at the ledger's end, then the tip, ``<ledger>.tip``, which records the number of
lines and the last digest. Each is on disk before the next begins, and only then may the report leave.

* A ledger is invalid unless it holds all the lines that its tip records, unchanged.
* A torn line that no tip records is dropped: a crash interrupted it, and no report left.
* One line more than the tip records counts as spent; two are an error, because no crash leaves them.

Not detected: forgery, and both files restored or copied together, unless a ``witness``, a second tip on
another disk, tells. docs/proofs/ledger.md has the proof.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, final

from sqsgd._internal import files
from sqsgd._internal.exact import from_units, to_units
from sqsgd.mechanisms import gaussian_account as account

FORMAT = "sqsgd ledger 1"
MAX_LINE = 8192
START = b"0" * 64
_BEFORE, _AFTER = b',"digest":"', b'"}\n'
_SEAL = len(_BEFORE) + len(START) + len(_AFTER)
Fields: TypeAlias = dict[str, Any]
_RECORD = ("rho", "rate", "turn")  # fields of reports with a guarantee per record
_decode = json.JSONDecoder().raw_decode  # twice as fast as json.loads


class ReportRefused(Exception):
    """The ledger does not allow the report: nothing was spent, and nothing may be sent."""


class LedgerDamaged(ReportRefused, ValueError):
    """The amount spent is not known for certain, so no more may be spent."""


class LedgerRolledBack(LedgerDamaged):
    """The ledger or one of its tips is older than it should be."""


# A line is a JSON object whose last member, ``digest``, is BLAKE2b-256 of the previous line's digest and of
# the line's bytes up to it. A changed, missing, repeated or moved line breaks the chain at that place.


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One report paid for."""

    line: int
    """Line number in the ledger; the heading is line 1."""
    epsilon: float
    task: str
    round: int
    scheme: str
    purpose: str
    time: str
    """UTC by this machine's clock; informational."""
    rho: str = ""
    """Per record: its ρ as an exact fraction; ``epsilon`` is then of this report alone."""
    rate: float = 1.0
    """Per record: the chance that the report used a record."""
    turn: int = -1
    """Per record: reports of the same task and turn used disjoint records, so that one of them counts."""


def _digest(body: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(before + body, digest_size=32, person=b"sqsgd ledger").hexdigest().encode()


def sealed(fields: Fields, before: bytes) -> bytes:
    """Return the line with these fields, chained to the digest ``before``."""
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    line = body + _BEFORE + _digest(body, before) + _AFTER
    if len(line) > MAX_LINE:
        raise ValueError(f"a line of {len(line)} bytes is too long: the limit is {MAX_LINE}")
    return line


def unsealed(line: bytes, before: bytes) -> tuple[Fields, bytes]:
    """Return the fields of a line and its digest; ValueError names the error in the line."""
    if not line.endswith(b"\n"):
        raise ValueError("is truncated or has no end")
    body = line[:-_SEAL]
    digest = _digest(body, before)
    if line[len(body) :] != _BEFORE + digest + _AFTER:
        raise ValueError("was changed or does not follow the previous line: its digest does not match")
    return _decode((body + b"}").decode("ascii"))[0], digest


@dataclass(kw_only=True)
class History:
    """All lines so far and their sums. A line is added completely or not at all."""

    lines: int = 0
    length: int = 0  # bytes of all the lines
    digest: bytes = START  # of the last line
    digest_before: bytes = START
    last_length: int = 0  # bytes of the last line
    heading: Fields = field(default_factory=dict)
    cap_units: int = 0
    spent_units: int = 0  # of pure epsilons
    pure_rho: Fraction = Fraction()
    uses: dict[tuple[Fraction, float], int] = field(default_factory=dict)
    turns: set[tuple[str, int, str]] = field(default_factory=set)
    answered: set[tuple[str, int]] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)

    @property
    def cap(self) -> Fraction:
        return from_units(self.cap_units)

    @property
    def delta(self) -> float | None:
        """δ of a cap per record, 0 where it is a ρ; None: the cap is of pure epsilons."""
        delta: float | None = self.heading.get("delta")
        return delta

    @property
    def spent(self) -> Fraction:
        """In the unit of the cap."""
        return self.after(None)

    def after(self, entry: Entry | None) -> Fraction:
        """The spending once this report is paid for, exactly, or per record at a δ rounded up."""
        units, uses, pure_rho = self._sums(entry)
        epsilon = from_units(units)
        if self.delta is None:
            return epsilon
        if self.delta == 0:
            return sum((rho * count for (rho, _), count in uses.items()), pure_rho)
        made = [account.Uses(rho=rho, rate=rate, count=count) for (rho, rate), count in uses.items()]
        try:
            return Fraction(account.mixed_epsilon(made, epsilon, pure_rho, self.delta))
        except ModuleNotFoundError:  # without dp-accounting, sampling counts for nothing
            every = [account.Uses(rho=each.rho, count=each.count) for each in made]
            return Fraction(account.mixed_epsilon(every, epsilon, pure_rho, self.delta))

    def _sums(self, entry: Entry | None) -> tuple[int, dict[tuple[Fraction, float], int], Fraction]:
        """The pure epsilons in units, the uses per record and the zCDP of pure reports, with this report."""
        units, uses, pure_rho = self.spent_units, self.uses, self.pure_rho
        if entry is None:
            return units, uses, pure_rho
        more = to_units(_epsilon(entry.epsilon, least=math.ulp(0.0)))
        if not entry.rho:
            units += more
            pure_rho += account.pure_rho(entry.epsilon) if self.delta is not None else 0
        elif entry.turn < 0 or (entry.task, entry.turn, entry.rho) not in self.turns:
            key = Fraction(entry.rho), entry.rate
            uses = {**uses, key: uses.get(key, 0) + 1}
        return units, uses, pure_rho

    def read(self, file: BinaryIO) -> str:
        """Add the file's remaining lines. Returns what is wrong with the first invalid one, if any."""
        file.seek(self.length)
        while line := file.readline(MAX_LINE):
            try:
                self.add(line)
            except (ValueError, KeyError, TypeError) as error:
                if not self.lines and not line.startswith(b'{"'):
                    return "is not a ledger's heading: this is another file, or a damaged one"
                return str(error) if isinstance(error, ValueError) else f"lacks a field ({error!r})"
        return ""

    def add(self, line: bytes) -> None:
        """Add one line; ValueError names the error in it."""
        fields, digest = unsealed(line, self.digest)
        kind = fields["kind"]
        if (kind == "heading") != (self.lines == 0) or fields["line"] != self.lines + 1:
            raise ValueError("is in the wrong place")
        if kind == "spend":
            self._add_spend(fields)
        elif kind == "cap":
            units = to_units(_epsilon(fields["max_epsilon"], least=0.0))
            if units > self.cap_units:
                raise ValueError("raises the cap")
            self.cap_units = units
        elif kind == "top-up":
            self.cap_units += to_units(_epsilon(fields["epsilon"], least=math.ulp(0.0)))
        elif kind == "heading" and fields["format"] == FORMAT:
            self.cap_units = to_units(_epsilon(fields["max_epsilon"], least=math.ulp(0.0)))
            self.heading = {name: fields[name] for name in ("ledger", "path", "owner", "witness")}
            if "delta" in fields:
                self.heading["delta"] = fields["delta"]
        else:
            raise ValueError(f"has the unknown kind {fields.get('format', kind)!r}")
        self.lines += 1
        self.length += len(line)
        self.digest_before, self.digest, self.last_length = self.digest, digest, len(line)

    def _add_spend(self, fields: Fields) -> None:
        entry = Entry(
            **{name: fields[name] for name in Entry.__slots__ if name in fields or name not in _RECORD}
        )
        units, uses, pure_rho = self._sums(entry)
        if self.delta is None and (entry.rho or units > self.cap_units):
            raise ValueError("spends more than the cap allows")
        key = (entry.task, entry.round)
        if key in self.answered:
            raise ValueError(f"answers round {entry.round} of the task {entry.task!r} a second time")
        self.spent_units, self.uses, self.pure_rho = units, uses, pure_rho
        if entry.rho:
            self.turns.add((entry.task, entry.turn, entry.rho))
        self.answered.add(key)
        self.entries.append(entry)


def _epsilon(value: object, least: float) -> float:
    if not isinstance(value, float) or not least <= value < math.inf:
        raise ValueError(f"has the invalid epsilon {value!r}")
    return value


class Tip(NamedTuple):
    """The length of a ledger and the digest of its last line."""

    path: Path
    ledger: str  # its random identifier
    at: str  # where it was created
    lines: int
    digest: str  # of the last line


def tip_path(ledger: Path) -> Path:
    """Where a ledger's own tip is."""
    return ledger.with_name(ledger.name + ".tip")


def _tip_paths(ledger: Path, witness: Path | str | None) -> list[Path]:
    return [tip_path(ledger), *([] if witness is None else [Path(witness)])]


def tip_line(history: History) -> bytes:
    """Return the content of this history's tip."""
    heading = history.heading
    fields = {"tip of": heading["ledger"], "at": heading["path"], "lines": history.lines}
    return sealed({**fields, "last": history.digest.decode()}, START)


def read_tip(path: Path) -> Tip | None:
    """Return the tip in a file, or None without a file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LINE + 1)
    except FileNotFoundError:
        return None
    try:
        fields, _ = unsealed(content, START)
        return Tip(path, fields["tip of"], fields["at"], fields["lines"], fields["last"])
    except (ValueError, KeyError, TypeError):
        raise LedgerDamaged(f"{path}: the ledger's tip is damaged") from None


def check_tips(path: Path, history: History, problem: str, torn: int, tips: list[Tip]) -> None:
    """Refuse a ledger that is damaged or older than its tips, and tips that are older than the ledger.

    ``torn`` bytes follow the valid lines, and ``problem`` says why they are not a line.
    """
    reached = f"{history.lines} line{'' if history.lines == 1 else 's'} ({history.length} bytes)"
    recorded = max(tips, key=lambda tip: tip.lines)
    if torn and (history.lines < recorded.lines or torn > MAX_LINE):
        raise LedgerDamaged(f"{path}: line {history.lines + 1} (byte {history.length}) {problem}")
    if history.lines < recorded.lines:
        raise LedgerRolledBack(
            f"{path} ends after {reached}, but {recorded.path} records {recorded.lines}: "
            "an older copy was restored, or the end was cut off"
        )
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


def create_files(path: Path, heading: Fields) -> None:
    """Write a new ledger, the tips first. If a tip records the heading alone, it may replace a lost one."""
    history = History()
    history.add(line := sealed(heading, START))
    tips = _tip_paths(path, heading["witness"])
    with files.locked(path.parent, os.O_RDONLY):
        if path.exists():
            raise FileExistsError(f"{path} exists: open it; it cannot be created again")
        for tip in tips:
            known = read_tip(tip)
            if known is not None and (known.lines > 1 or known.at != str(path)):
                raise LedgerRolledBack(f"{tip} is the tip of {known.at}, and records {known.lines} lines")
        for tip in tips:
            files.put(files.prepared(tip, tip_line(history)), tip)
        files.put(files.prepared(path, line), path)


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
                descriptor = stack.enter_context(files.locked(self.path, flags))
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
            behind = " and ".join(str(tip.path) for tip in self._tips if tip.lines < history.lines)
            return f"the last line counts, but is not yet recorded in {behind}" if behind else ""

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
        self._tips, self._torn = [], size - history.length
        for path in _tip_paths(self.path, self._witness or history.heading["witness"]):
            tip = read_tip(path)
            if tip is None:
                raise LedgerDamaged(
                    f"{path} is missing: without it an older copy of {self.path} would not be detected"
                )
            self._tips.append(tip)
        check_tips(self.path, history, problem, self._torn, self._tips)

    def append(self, descriptor: int, history: History, fields: Fields) -> None:
        """Write one more line. Returns once it and the tips are on disk."""
        self._history = None
        self._repair(descriptor, history)
        start = history.length
        line = sealed({"line": history.lines + 1, **fields}, history.digest)
        history.add(line)
        content, parts = tip_line(history), []
        try:
            files.write_at(descriptor, line, start)
            for tip in self._tips:
                parts.append((files.prepared(tip.path, content), tip.path))  # noqa: PERF401
        except BaseException:
            for part, _ in parts:
                part.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the line then counts, or is found torn
                files.cut_at(descriptor, start)
            raise
        # From here on a tip may record the line: it stays.
        for part, path in parts:
            files.put(part, path)
        self._history, self._known = history, history.lines

    def _repair(self, descriptor: int, history: History) -> None:
        """Finish what a crash interrupted."""
        if self._torn:
            files.cut_at(descriptor, history.length)
        behind = [tip for tip in self._tips if tip.lines < history.lines]
        if behind:
            # Write it again: its writer may have died before it was on disk, or the sync may have failed.
            start = history.length - history.last_length
            files.write_at(descriptor, os.pread(descriptor, history.last_length, start), start)
        for tip in behind:
            files.put(files.prepared(tip.path, tip_line(history)), tip.path)
