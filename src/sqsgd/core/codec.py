"""The wire format: columns of whole numbers (or floats) to bytes, in a versioned, checksummed envelope.

A message is the version (one byte), a checksum (four bytes) and the packed columns. The checksum is bound to
the scheme and the task, which are not sent, so that a message is valid for no other: docs/wire-format.md.
"""

import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Columns = tuple[Array, ...]

VERSION = 1
_ENVELOPE = struct.Struct("<BI")  # version, checksum
ENVELOPE_BYTES = _ENVELOPE.size
_DAMAGED = "the report is damaged, or for another scheme, round, client, seed or bound"


class MalformedReport(ValueError):
    """Raised for invalid reports, where ``reason`` is a keyword and ``text`` is a description.

    >>> MalformedReport("length", "4 bytes are too few").reason
    'length'
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Column:
    """``count`` whole numbers in 0..alphabet-1, or float32 numbers where ``alphabet`` is None.

    An alphabet of 2^b takes exactly b bits per code. Others are packed in groups of codes, each group one
    number in base ``alphabet``: at most 2 % more than log2(alphabet) for alphabets up to 256.

    >>> Column(512, 16).bits, Column(1000, 3).bits, Column(2, None).bits
    (2048, 1587, 64)
    """

    count: int
    alphabet: int | None

    def __post_init__(self) -> None:
        checks.integer("count", self.count, 1, 2**32)
        if self.alphabet is not None:
            checks.integer("alphabet", self.alphabet, 2, 2**32)

    @cached_property
    def code_bits(self) -> int:
        """b if the alphabet is 2^b with b <= 8 (eight codes fill b bytes), else 0."""
        alphabet = self.alphabet or 0
        return alphabet.bit_length() - 1 if alphabet <= 256 and alphabet.bit_count() == 1 else 0

    @cached_property
    def _room(self) -> tuple[int, int]:
        """Codes in whole groups of eight, and 64-bit words for them when packed, and one more."""
        eights = -(-self.count // 8)
        return 8 * eights, -(-self.code_bits * eights // 8) + 1

    @cached_property
    def group(self) -> tuple[int, int, int]:
        """(codes in a group, bits of a group, bits of the last group, which may be smaller)."""
        widths = [int((self.alphabet or 2) ** size - 1).bit_length() for size in range(65)]
        fitting = (size for size in range(1, 65) if widths[size] <= 64)
        size = min(fitting, key=lambda size: (widths[size] / size, size))
        return size, widths[size], widths[self.count % size or size]

    @cached_property
    def bits(self) -> int:
        """Bits of the packed column, which is padded to whole bytes."""
        if self.alphabet is None:
            return 32 * self.count
        if self.code_bits:
            return self.code_bits * self.count
        size, width, last = self.group
        return (-(-self.count // size) - 1) * width + last

    @cached_property
    def length(self) -> int:
        """Bytes of the packed column."""
        return -(-self.bits // 8)

    @property
    def outputs(self) -> float:
        """How many different columns there are."""
        return math.inf if self.alphabet is None else self.alphabet**self.count

    def every(self) -> Iterator[Array]:
        """All of them, for small ones."""
        codes = itertools.product(range(self.alphabet or 0), repeat=self.count)
        return (np.array(each, np.uint32) for each in codes)

    def pack(self, values: Array) -> memoryview:
        """Return the column's bytes, little-endian, the first code in the lowest bits."""
        from sqsgd._internal.kernels.coding import fold, fold_groups

        if self.alphabet is None:
            return np.ascontiguousarray(values, "<f4").data.cast("B")
        if self.code_bits:
            words = np.zeros(self._room[1], np.uint64)
            fold(_padded(values, np.uint8, self._room[0]), self.code_bits, words)
            return words.view(np.uint8).data[: self.length]
        target = np.zeros(self.length + 8, np.uint8)
        fold_groups(np.ascontiguousarray(values, np.uint32), self.alphabet, *self.group, target)
        return target.data[: self.length]

    def unpack(self, body: memoryview) -> Array:
        """Return the inverse of pack. Raises MalformedReport for bytes that pack cannot have written."""
        from sqsgd._internal.kernels.coding import expand, expand_groups

        if self.alphabet is None:
            values = np.frombuffer(body, "<f4").astype(np.float32)
            if not np.isfinite(values).all():
                raise MalformedReport("code", "the report contains a number that is not finite")
            return values
        if self.bits % 8 and body[-1] >> (self.bits % 8):
            raise MalformedReport("padding", "the unused bits at the end of a column are not zero")
        source = np.frombuffer(body, np.uint8)
        if self.code_bits:
            codes = np.empty(self._room[0], np.uint8)
            expand(_padded(source, np.uint8, 8 * self._room[1]).view(np.uint64), self.code_bits, codes)
            return codes[: self.count]
        numbers = np.empty(self.count, np.uint32)
        wrong = expand_groups(_padded(source, np.uint8, source.size + 8), self.alphabet, *self.group, numbers)
        if wrong >= 0:
            raise MalformedReport("code", f"group {wrong} of a column has a code above {self.alphabet - 1}")
        return numbers.astype(np.uint8) if self.alphabet <= 256 else numbers

    def pack_many(self, values: Array) -> Bytes:
        """Return the bytes of many columns: one row each, as ``pack`` gives them."""
        if self.count == 1 and self.alphabet is not None:  # one code, little-endian
            return np.ascontiguousarray(values, "<u4").view(np.uint8)[:, : self.length]
        return np.stack([np.frombuffer(self.pack(row), np.uint8) for row in values])

    def unpack_many(self, bodies: Bytes) -> Array:
        """Return the inverse of pack_many. Raises MalformedReport if ``unpack`` refuses any row."""
        if self.count == 1 and self.alphabet is not None:
            codes = np.zeros((len(bodies), 1), "<u4")
            codes.view(np.uint8)[:, : self.length] = bodies
            if codes.size and int(codes.max()) >= self.alphabet:
                raise MalformedReport("code", f"a column contains a code above {self.alphabet - 1}")
            return codes.astype(np.uint8 if self.alphabet <= 256 else np.uint32)
        return np.stack([self.unpack(row.data) for row in np.ascontiguousarray(bodies)])


@dataclass(frozen=True)
class SignedSubset:
    """``count`` different coordinates out of ``size``, each with a sign, as rising codes 2 place + sign.

    One number for the whole subset, in at most one bit more than log2 C(size, count) + count for up to half
    of the coordinates: tests/core/test_codec.py::test_a_subset_takes_at_most_one_bit_more_than_it_must.

    >>> SignedSubset(48, 131072).bits, SignedSubset(1, 4096).bits
    (662, 13)
    """

    count: int
    size: int

    def __post_init__(self) -> None:
        checks.integer("size", self.size, 1, 2**31)
        checks.integer("count", self.count, 1, min(self.size, 1 << 16))

    @property
    def alphabet(self) -> int:
        return 2 * self.size

    @cached_property
    def bits(self) -> int:
        """Bits of the largest number that a subset can have."""
        # For up to half of the coordinates the number is below least (1 + count² / 2^count), as each of the
        # divisions rounds up a number of at least 2^count.
        least = math.comb(self.size, self.count) << self.count
        most = least + (least * self.count**2 >> self.count)
        if 2 * self.count <= self.size and (least - 1).bit_length() == most.bit_length():
            return most.bit_length()
        numbers = 1 << self.count
        for n in range(self.count, 0, -1):
            numbers = -(-numbers // n) * (self.size - n + 1)
        return (numbers - 1).bit_length()

    @cached_property
    def length(self) -> int:
        return -(-self.bits // 8)

    @property
    def outputs(self) -> float:
        return math.comb(self.size, self.count) << self.count

    def every(self) -> Iterator[Array]:
        """All of them, for small ones."""
        for places in itertools.combinations(range(self.size), self.count):
            for signs in itertools.product((0, 1), repeat=self.count):
                codes = (2 * place + sign for place, sign in zip(places, signs, strict=True))
                yield np.fromiter(codes, np.uint32)

    @cached_property
    def _limbs(self) -> int:
        return max(-(-self.bits // 32), -(-self.count // 32)) + 1

    def pack(self, values: Array) -> memoryview:
        """Return the subset's number, little-endian."""
        return memoryview(self.pack_many(values[None])[0])

    def unpack(self, body: memoryview) -> Array:
        return np.asarray(self.unpack_many(np.frombuffer(body, np.uint8)[None])[0])

    def pack_many(self, values: Array) -> Bytes:
        from sqsgd._internal.kernels.coding import fold_subsets

        limbs = np.zeros((len(values), self._limbs), np.uint32)
        fold_subsets(np.ascontiguousarray(values, np.uint32), self.size, limbs)
        return limbs.astype("<u4").view(np.uint8)[:, : self.length]

    def unpack_many(self, bodies: Bytes) -> Array:
        from sqsgd._internal.kernels.coding import expand_subsets

        padded = np.zeros((len(bodies), 4 * self._limbs), np.uint8)
        padded[:, : self.length] = bodies
        codes = np.empty((len(bodies), self.count), np.uint32)
        if not expand_subsets(padded.view("<u4").astype(np.uint32), self.size, codes):
            raise MalformedReport("code", "a report holds a number that no subset has")
        return codes


def _padded(values: Array, kind: Any, size: int) -> Array:
    if values.size == size and values.dtype == kind and values.flags.c_contiguous:
        return values
    result = np.zeros(size, kind)
    result[: values.size] = values
    return result


AnyColumn = Column | SignedSubset
Layout = tuple[AnyColumn, ...]


def size(layout: Layout) -> int:
    """Return the number of bytes of a whole message, which has the envelope and each column."""
    return ENVELOPE_BYTES + sum(column.length for column in layout)


def _checksum(scheme: int, binding: bytes, body: bytes | memoryview = b"") -> int:
    """CRC-32 of version, scheme, task and columns. Only the first and the last are sent."""
    return zlib.crc32(body, zlib.crc32(binding, zlib.crc32(struct.pack("<BI", VERSION, scheme))))


def seal(layout: Layout, columns: Sequence[Array], *, scheme: int, binding: bytes) -> bytes:
    """The message of a scheme (its fingerprint) for a task (its binding): the envelope, then the columns."""
    body = b"".join(column.pack(values) for column, values in zip(layout, columns, strict=True))
    return _ENVELOPE.pack(VERSION, _checksum(scheme, binding, body)) + body


def unseal(message: object, layout: Layout, *, scheme: int, binding: bytes) -> Columns:
    """Check the envelope and unpack. Raises MalformedReport, which names the first problem."""
    if not isinstance(message, bytes | bytearray | memoryview):
        raise MalformedReport("type", f"a report must be bytes, not {type(message).__name__}")
    try:
        view = memoryview(bytes(message) if not isinstance(message, bytes) else message)
    except ValueError as error:
        raise MalformedReport("type", f"a report must be bytes: {error}") from None
    start = ENVELOPE_BYTES
    if len(view) < start:
        raise MalformedReport("length", f"{len(view)} bytes are too few: the envelope has {start}")
    version, sent = _ENVELOPE.unpack_from(view)
    if version != VERSION:
        raise MalformedReport("version", f"wire format {version} is unknown; this program reads {VERSION}")
    if len(view) != size(layout):
        raise MalformedReport("length", f"the report has {len(view)} bytes; it must have {size(layout)}")
    if sent != _checksum(scheme, binding, view[start:]):
        raise MalformedReport("checksum", _DAMAGED)
    columns = []
    for column in layout:
        columns.append(column.unpack(view[start : start + column.length]))
        start += column.length
    return tuple(columns)


def seal_many(layout: Layout, columns: Sequence[Array], *, scheme: int, bindings: Sequence[bytes]) -> Bytes:
    """``seal`` for many reports: one row each of columns and of messages."""
    messages, start = np.empty((len(bindings), size(layout)), np.uint8), ENVELOPE_BYTES
    for column, values in zip(layout, columns, strict=True):
        messages[:, start : start + column.length] = column.pack_many(values)
        start += column.length
    messages[:, 0] = VERSION
    messages[:, 1:ENVELOPE_BYTES] = _checksums(messages, scheme, bindings)
    return messages


def unseal_many(messages: Bytes, layout: Layout, *, scheme: int, bindings: Sequence[bytes]) -> Columns:
    """``unseal`` for many reports, one row each; MalformedReport names the first that is invalid."""
    shape = len(bindings), size(layout)
    if messages.dtype != np.uint8 or messages.shape != shape:
        found = f"{messages.dtype} of shape {messages.shape}"
        raise MalformedReport("length", f"the reports are {found}; they must be uint8 of shape {shape}")
    sums = _checksums(messages, scheme, bindings)
    columns, start = [], ENVELOPE_BYTES
    try:
        if (messages[:, 0] != VERSION).any() or not np.array_equal(messages[:, 1:ENVELOPE_BYTES], sums):
            raise MalformedReport("checksum", _DAMAGED)
        for column in layout:
            columns.append(column.unpack_many(messages[:, start : start + column.length]))
            start += column.length
    except MalformedReport:
        for i, (message, binding) in enumerate(zip(messages, bindings, strict=True)):
            try:
                unseal(message.tobytes(), layout, scheme=scheme, binding=binding)
            except MalformedReport as error:
                raise MalformedReport(error.reason, f"report {i}: {error.text}") from None
        raise
    return tuple(columns)


def _checksums(messages: Bytes, scheme: int, bindings: Sequence[bytes]) -> Bytes:
    """Return the checksum of each message, as four bytes."""
    start, bodies = _checksum(scheme, b""), np.ascontiguousarray(messages[:, ENVELOPE_BYTES:])
    pairs = zip(bindings, bodies, strict=True)
    sums = [zlib.crc32(body, zlib.crc32(binding, start)) for binding, body in pairs]
    return np.array(sums, "<u4").view(np.uint8).reshape(-1, 4)
