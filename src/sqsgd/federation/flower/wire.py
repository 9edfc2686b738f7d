"""Requests, models and reports as Flower's records.

Down: a request (one ConfigRecord), the model (an ArrayRecord) or an update of it (a ConfigRecord), and the
app's own configuration. Up: one ConfigRecord with one ``bytes`` payload, or an error with one of the fixed
reasons of federation/node/policy.py.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from sqsgd._internal.checks import Vector
from sqsgd.federation.node.request import Download, MalformedRequest, Request, fields_size
from sqsgd.federation.node.structure import Arrays, Structure, flatten

REQUEST = "sqsgd.request"
UPDATE = "sqsgd.update"
REPORT = "sqsgd.report"
PAYLOAD = "payload"
MODEL = "arrays"  # where Flower's own strategies put the model
CONFIG = "config"  # and their configuration
GRADIENT = "gradient"  # an ArrayRecord of this name in an app's reply is a gradient, not a model


def read_request(record: object) -> Request:
    """The request of a record; raises MalformedRequest naming the first thing that is wrong."""
    if not isinstance(record, ConfigRecord):
        raise MalformedRequest(f"there is no ConfigRecord {REQUEST!r}: the server does not use SqsgdStrategy")
    return Request.from_fields(record)


def record_of(arrays: Arrays) -> ArrayRecord:
    """Named arrays as one record."""
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def arrays_of(record: ArrayRecord) -> Arrays:
    """The arrays of a record."""
    return {name: array.numpy() for name, array in record.items()}


def model_record(structure: Structure, weights: Vector) -> ArrayRecord:
    """A model's arrays as one record, for an app; the server sends ``record_of(structure.sent(weights))``."""
    return record_of(structure.unflatten(weights))


def flatten_record(record: ArrayRecord) -> tuple[Structure, Vector]:
    """A model's structure and its weights as one float32 vector."""
    return flatten(arrays_of(record))


def download_of(content: RecordDict) -> Download:
    """The model or update that comes with a request."""

    def arrays() -> Arrays:
        if MODEL not in content.array_records:
            raise MalformedRequest(f"{MODEL!r} must be an ArrayRecord")
        return arrays_of(content.array_records[MODEL])

    return Download(arrays=arrays if MODEL in content else None, update=content.config_records.get(UPDATE))


def report_content(payload: bytes) -> RecordDict:
    """A node's whole answer."""
    return RecordDict({REPORT: ConfigRecord({PAYLOAD: payload})})


def payload_size(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    """Bytes of a record's values and their names, before anything is wrapped around them."""
    # Flower's own count rejects empty bytes in a ConfigRecord.
    return fields_size(record) if isinstance(record, ConfigRecord) else record.count_bytes()


def serialised_size(message: Message) -> int:
    """Bytes of a message as Flower serialises it: the message and each object in it once; no transport."""
    objects: dict[str, Any] = {}

    def collect(part: Any) -> None:
        objects[part.object_id] = part
        for child in (part.children or {}).values():
            collect(child)

    collect(message)
    return sum(len(part.deflate()) for part in objects.values())
