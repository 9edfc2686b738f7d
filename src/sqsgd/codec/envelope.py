"""Messages: the columns of a report in a versioned, checksummed envelope."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.codec.columns import Array, Bytes, Columns, Layout, MalformedReport

MAGIC, VERSION = b"SQ", 1
_HEADER = struct.Struct("<2sBBIII")  # magic, version, reserved, scheme, round, checksum
_HEADER_2 = struct.Struct("<BI")  # version, checksum
ENVELOPE_BYTES = _HEADER.size
ENVELOPES = {1: ENVELOPE_BYTES, 2: _HEADER_2.size}
"""Bytes of the envelope of each version of the wire format."""
_DAMAGED = {
    1: "the report is damaged, or for another client, seed or bound",
    2: "the report is damaged, or for another scheme, round, client, seed or bound",
}


def size(layout: Layout, version: int = 1) -> int:
    """Bytes of a whole message: the envelope and each column."""
    return ENVELOPES[version] + sum(column.length for column in layout)


def seal(
    layout: Layout,
    columns: Sequence[Array],
    *,
    scheme: int,
    round: int,
    binding: bytes,
    version: int = 1,
) -> bytes:
    """The envelope, then each column from a byte boundary; the checksum also covers ``binding``."""
    body = b"".join(column.pack(values) for column, values in zip(layout, columns, strict=True))
    if version == 2:
        return _HEADER_2.pack(2, _checksum_2(scheme, binding, body)) + body
    header = _HEADER.pack(MAGIC, VERSION, 0, scheme, round, 0)
    checksum = zlib.crc32(body, zlib.crc32(binding, zlib.crc32(header)))
    return _HEADER.pack(MAGIC, VERSION, 0, scheme, round, checksum) + body


def _checksum_2(scheme: int, binding: bytes, body: bytes | memoryview) -> int:
    """CRC-32 of version, scheme, task and columns; the first three are not sent, or sent once."""
    return zlib.crc32(body, zlib.crc32(binding, zlib.crc32(struct.pack("<BI", 2, scheme))))


def unseal(
    message: object, layout: Layout, *, scheme: int, round: int, binding: bytes, version: int = 1
) -> Columns:
    """Check the envelope and unpack; raises MalformedReport, which names the first problem."""
    if not isinstance(message, bytes | bytearray | memoryview):
        raise MalformedReport("type", f"a report must be bytes, not {type(message).__name__}")
    try:
        view = memoryview(bytes(message) if not isinstance(message, bytes) else message)
    except ValueError as error:
        raise MalformedReport("type", f"a report must be bytes: {error}") from None
    start = ENVELOPES[version]
    if len(view) < start:
        raise MalformedReport("length", f"{len(view)} bytes are too few: the envelope has {start}")
    (_check_envelope_2 if version == 2 else _check_envelope)(view, scheme, round)
    if len(view) != size(layout, version):
        raise MalformedReport(
            "length", f"the report has {len(view)} bytes; it must have {size(layout, version)}"
        )
    if version == 2:
        sent, computed = _HEADER_2.unpack_from(view)[1], _checksum_2(scheme, binding, view[start:])
    else:
        sent = _HEADER.unpack_from(view)[-1]
        header = _HEADER.pack(MAGIC, VERSION, 0, scheme, round, 0)
        computed = zlib.crc32(view[start:], zlib.crc32(binding, zlib.crc32(header)))
    if sent != computed:
        raise MalformedReport("checksum", _DAMAGED[version])
    columns = []
    for column in layout:
        columns.append(column.unpack(view[start : start + column.length]))
        start += column.length
    return tuple(columns)


def _check_envelope(view: memoryview, scheme: int, round: int) -> None:
    """The readable fields of version 1."""
    magic, version, reserved, sent_scheme, sent_round, _ = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise MalformedReport("magic", f"the message starts with {magic!r}; a report starts with {MAGIC!r}")
    if version != VERSION or reserved != 0:
        raise MalformedReport(
            "version", f"wire format {version}.{reserved} is unknown; this program reads {VERSION}.0"
        )
    if sent_scheme != scheme:
        raise MalformedReport(
            "scheme",
            f"the report is from another scheme or other parameters ({sent_scheme:08x}, not {scheme:08x})",
        )
    if sent_round != round:
        raise MalformedReport("round", f"the report is for round {sent_round}, not for round {round}")


def _check_envelope_2(view: memoryview, scheme: int, round: int) -> None:
    """The version; everything else is in the checksum."""
    if view[0] != 2:
        raise MalformedReport("version", f"the message starts with {view[0]}; wire format 2 starts with 2")


# ---------------------------------------------------------------- many messages at once


@dataclass(frozen=True)
class Bindings:
    """The bindings of many tasks that differ in one 64-bit number: ``front``, the number, ``back``."""

    front: bytes
    numbers: npt.NDArray[np.uint64]
    back: bytes

    def __getitem__(self, index: int) -> bytes:
        return self.front + int(self.numbers[index]).to_bytes(8, "little") + self.back


def seal_many(
    layout: Layout,
    columns: Sequence[Array],
    *,
    scheme: int,
    round: int,
    bindings: Bindings,
    version: int = 1,
) -> Bytes:
    """``seal`` for many reports: one row each of columns and of messages."""
    start = ENVELOPES[version]
    messages = np.empty((bindings.numbers.size, size(layout, version)), np.uint8)
    for column, values in zip(layout, columns, strict=True):
        messages[:, start : start + column.length] = column.pack_many(values)
        start += column.length
    header, at = _header(scheme, round, version)
    messages[:, : len(header)] = np.frombuffer(header, np.uint8)
    sums = _checksums(messages, scheme, round, bindings, version)
    messages[:, at : at + 4] = sums.view(np.uint8).reshape(-1, 4)
    return messages


def unseal_many(
    messages: Bytes, layout: Layout, *, scheme: int, round: int, bindings: Bindings, version: int = 1
) -> Columns:
    """``unseal`` for many reports, one row each; MalformedReport names the first that is invalid."""
    shape = bindings.numbers.size, size(layout, version)
    if messages.dtype != np.uint8 or messages.shape != shape:
        found = f"{messages.dtype} of shape {messages.shape}"
        raise MalformedReport("length", f"the reports are {found}; they must be uint8 of shape {shape}")
    header, at = _header(scheme, round, version)
    expected = np.tile(np.frombuffer(header, np.uint8), (len(messages), 1))
    sums = _checksums(messages, scheme, round, bindings, version)
    expected[:, at : at + 4] = sums.view(np.uint8).reshape(-1, 4)
    shared: dict[str, Any] = {"scheme": scheme, "round": round, "version": version}
    columns, start = [], len(header)
    try:
        if not np.array_equal(messages[:, :start], expected):
            raise MalformedReport("checksum", _DAMAGED[version])
        for column in layout:
            columns.append(column.unpack_many(messages[:, start : start + column.length]))
            start += column.length
    except MalformedReport:
        for i, message in enumerate(messages):
            try:
                unseal(message.tobytes(), layout, binding=bindings[i], **shared)
            except MalformedReport as error:
                raise MalformedReport(error.reason, f"report {i}: {error.text}") from None
        raise
    return tuple(columns)


def _header(scheme: int, round: int, version: int) -> tuple[bytes, int]:
    """The envelope with a checksum of zero, and where the checksum stands in it."""
    if version == 2:
        return _HEADER_2.pack(2, 0), 1
    return _HEADER.pack(MAGIC, VERSION, 0, scheme, round, 0), ENVELOPE_BYTES - 4


def _checksums(messages: Bytes, scheme: int, round: int, bindings: Bindings, version: int) -> Array:
    from sqsgd.kernels.coding import checksums

    before = struct.pack("<BI", 2, scheme) if version == 2 else _header(scheme, round, version)[0]
    start = zlib.crc32(bindings.front, zlib.crc32(before))
    sums = np.empty(len(messages), np.uint32)
    bodies = np.array(messages[:, ENVELOPES[version] :], order="C")  # writable, as the kernel knows them
    back = np.frombuffer(bytearray(bindings.back), np.uint8)
    checksums(np.uint32(start), bindings.numbers, back, bodies, sums)
    return sums.astype("<u4")
