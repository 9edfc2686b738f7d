"""The lines of a ledger as a hash chain, and the sums over them.

A line is a JSON object whose last member, ``digest``, is BLAKE2b-256 of the previous line's digest and of
the line's bytes up to it. A changed, missing, repeated or moved line breaks the chain at that place. There
is no key: anyone who can write the file can also forge all of it.
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
MAX_LINE = 8192
START = b"0" * 64
_BEFORE, _AFTER = b',"digest":"', b'"}\n'
_SEAL = len(_BEFORE) + len(START) + len(_AFTER)
Fields: TypeAlias = dict[str, Any]
_decode = json.JSONDecoder().raw_decode  # twice as fast as json.loads


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


def _digest(body: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(before + body, digest_size=32, person=b"sqsgd ledger").hexdigest().encode()


def sealed(fields: Fields, before: bytes) -> bytes:
    """The line with these fields, chained to the digest ``before``."""
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    line = body + _BEFORE + _digest(body, before) + _AFTER
    if len(line) > MAX_LINE:
        raise ValueError(f"a line of {len(line)} bytes is too long: the limit is {MAX_LINE}")
    return line


def unsealed(line: bytes, before: bytes) -> tuple[Fields, bytes]:
    """The fields of a line and its digest; ValueError says what is wrong with the line."""
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
    length: int = 0
    """Bytes of all the lines."""
    digest: bytes = START
    """Digest of the last line."""
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
        """The most that may be spent."""
        return from_units(self.cap_units)

    @property
    def spent(self) -> Fraction:
        """The epsilon spent."""
        return from_units(self.spent_units)

    def read(self, file: BinaryIO) -> str:
        """Add the file's remaining lines; returns what is wrong with the first invalid one, if any."""
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
        """Add one line; ValueError says what is wrong with it."""
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
        elif kind == "heading" and fields["format"] == FORMAT:
            self.cap_units = to_units(_epsilon(fields["max_epsilon"], least=math.ulp(0.0)))
            self.heading = {name: fields[name] for name in ("ledger", "path", "owner", "witness")}
        else:
            raise ValueError(f"has the unknown kind {fields.get('format', kind)!r}")
        self.lines += 1
        self.length += len(line)
        self.digest_before, self.digest, self.last_length = self.digest, digest, len(line)

    def _add_spend(self, fields: Fields) -> None:
        entry = Entry(**{name: fields[name] for name in Entry.__slots__})
        units = self.spent_units + to_units(_epsilon(entry.epsilon, least=math.ulp(0.0)))
        if units > self.cap_units:
            raise ValueError("spends more than the cap allows")
        key = (entry.task, entry.round)
        if key in self.answered:
            raise ValueError(f"answers round {entry.round} of the task {entry.task!r} a second time")
        self.spent_units = units
        self.answered.add(key)
        self.entries.append(entry)


def _epsilon(value: object, least: float) -> float:
    if not isinstance(value, float) or not least <= value < math.inf:
        raise ValueError(f"has the invalid epsilon {value!r}")
    return value
