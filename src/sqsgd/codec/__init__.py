"""The wire format: columns of whole numbers to bytes, in a versioned, checksummed envelope.

docs/wire-format.md describes it byte by byte; tests/codec checks golden bytes. No other room packs bits.
"""

from sqsgd.codec.columns import (
    AnyColumn,
    Array,
    Bytes,
    Column,
    Columns,
    Layout,
    MalformedReport,
    SignedSubset,
)
from sqsgd.codec.envelope import (
    ENVELOPE_BYTES,
    ENVELOPES,
    MAGIC,
    VERSION,
    Bindings,
    seal,
    seal_many,
    size,
    unseal,
    unseal_many,
)

__all__ = [
    "ENVELOPES",
    "ENVELOPE_BYTES",
    "MAGIC",
    "VERSION",
    "AnyColumn",
    "Array",
    "Bindings",
    "Bytes",
    "Column",
    "Columns",
    "Layout",
    "MalformedReport",
    "SignedSubset",
    "seal",
    "seal_many",
    "size",
    "unseal",
    "unseal_many",
]
