"""The lines of a ledger: sealed, each to the one before, and what they add up to.

A line is a JSON object whose last member, ``digest``, is BLAKE2b-256 of the digest before it and of the
line's bytes up to it. A changed, missing, repeated or moved line breaks the chain at that place. There
is no key: whoever may write the file can also forge all of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, BinaryIO, TypeAlias

from sqsgd.numerics.epsilon_sums import from_units, to_units

FORMAT = "sqsgd ledger 1"
MOST_LINE = 8192
START = b"0" * 64
_BEFORE, _AFTER = b',"digest":"', b'"}\n'
_SEAL = len(_BEFORE) + len(START) + len(_AFTER)
Fields: TypeAlias = dict[str, Any]
_decode = json.JSONDecoder().raw_decode  # half of what json.loads takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One report that was paid for."""

    line: int
    """Where it stands in the ledger; the first line is the heading."""
    epsilon: float
    task: str
    round: int
    scheme: str
    purpose: str
    time: str
    """By this machine's clock, in UTC; for people, nothing depends on it."""


def _digest(body: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(before + body, digest_size=32, person=b"sqsgd ledger").hexdigest().encode()


def sealed(fields: Fields, before: bytes) -> bytes:
    """The line of these fields after the one with the digest ``before``."""
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    line = body + _BEFORE + _digest(body, before) + _AFTER
    if len(line) > MOST_LINE:
        raise ValueError(f"a line of {len(line)} bytes is too long: at most {MOST_LINE}")
    return line


def unsealed(line: bytes, before: bytes) -> tuple[Fields, bytes]:
    """The fields of a line and its digest; ValueError says what is wrong with it."""
    if not line.endswith(b"\n"):
        raise ValueError("is cut off or runs on without an end")
    body = line[:-_SEAL]
    digest = _digest(body, before)
    if line[len(body) :] != _BEFORE + digest + _AFTER:
        raise ValueError("was changed or does not follow the line before it: its digest does not match")
    return _decode((body + b"}").decode("ascii"))[0], digest


@dataclass(kw_only=True)
class History:
    """All lines so far, taken in one by one; a line is taken in whole or not at all."""

    lines: int = 0
    length: int = 0
    """Bytes of all the lines."""
    digest: bytes = START
    """Of the last line."""
    digest_before: bytes = START
    last_length: int = 0
    """Bytes of the last line."""
    heading: Fields = field(default_factory=dict)
    cap_units: int = 0
    spent_units: int = 0
    answered: set[tuple[str, int]] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)

    @property
    def cap(self) -> Fraction:
        """What may be spent at most."""
        return from_units(self.cap_units)

    @property
    def spent(self) -> Fraction:
        """What is spent."""
        return from_units(self.spent_units)

    def read(self, file: BinaryIO) -> str:
        """Take in what follows in the file; why it stopped, empty at the file's end."""
        file.seek(self.length)
        while line := file.readline(MOST_LINE):
            try:
                self.add(line)
            except (ValueError, KeyError, TypeError) as error:
                if not self.lines and not line.startswith(b'{"'):
                    return "is not how a ledger begins: this is another file, or a damaged one"
                return str(error) if isinstance(error, ValueError) else f"lacks something ({error!r})"
        return ""

    def add(self, line: bytes) -> None:
        """Take in one more line; ValueError says what is wrong with it."""
        fields, digest = unsealed(line, self.digest)
        kind = fields["kind"]
        if (kind == "heading") != (self.lines == 0) or fields["line"] != self.lines + 1:
            raise ValueError("stands in the wrong place")
        if kind == "spend":
            self._add_spend(fields)
        elif kind == "cap":
            units = to_units(_amount(fields["max_epsilon"], least=0.0))
            if units > self.cap_units:
                raise ValueError("raises the cap")
            self.cap_units = units
        elif kind == "heading" and fields["format"] == FORMAT:
            self.cap_units = to_units(_amount(fields["max_epsilon"], least=math.ulp(0.0)))
            self.heading = {name: fields[name] for name in ("ledger", "path", "owner", "witness")}
        else:
            raise ValueError(f"is of an unknown kind, {fields.get('format', kind)!r}")
        self.lines += 1
        self.length += len(line)
        self.digest_before, self.digest, self.last_length = self.digest, digest, len(line)

    def _add_spend(self, fields: Fields) -> None:
        entry = Entry(
            line=fields["line"],
            epsilon=fields["epsilon"],
            task=fields["task"],
            round=fields["round"],
            scheme=fields["scheme"],
            purpose=fields["purpose"],
            time=fields["time"],
        )
        units = self.spent_units + to_units(_amount(entry.epsilon, least=math.ulp(0.0)))
        if units > self.cap_units:
            raise ValueError("spends more than the cap allows")
        key = (entry.task, entry.round)
        if key in self.answered:
            raise ValueError(f"answers round {entry.round} of the task {entry.task!r} a second time")
        self.spent_units = units
        self.answered.add(key)
        self.entries.append(entry)


def _amount(value: object, least: float) -> float:
    if not isinstance(value, float) or not least <= value < math.inf:
        raise ValueError(f"holds the amount {value!r}")
    return value
