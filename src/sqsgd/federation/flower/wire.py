"""Requests, models and reports as Flower's records.

Down: a request (one ConfigRecord), the model (an ArrayRecord), and the app's own configuration. Up: one
ConfigRecord with one ``bytes`` payload, or an error with one of the fixed reasons of node/policy.py.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from sqsgd._internal.checks import Vector
from sqsgd.federation.node.request import MalformedRequest, NotAsked, Request
from sqsgd.federation.node.structure import Arrays, Structure, flatten

REQUEST = "sqsgd.request"
REPORT = "sqsgd.report"
PAYLOAD = "payload"
MODEL = "arrays"  # where Flower's own strategies put the model
CONFIG = "config"  # and their configuration
GRADIENT = "gradient"  # an ArrayRecord of this name in an app's reply is a gradient, not a model


def read_request(record: object) -> Request:
    if not isinstance(record, ConfigRecord):
        raise NotAsked(f"there is no ConfigRecord {REQUEST!r}: the server does not use SqsgdStrategy")
    return Request.from_fields(record)


def arrays_of(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def read_model(content: RecordDict) -> Arrays:
    """Return the model that comes with a request. Raises MalformedRequest."""
    if MODEL not in content.array_records:
        raise MalformedRequest(f"{MODEL!r} must be an ArrayRecord")
    return arrays_of(content.array_records[MODEL])


def model_record(structure: Structure, weights: Vector) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in structure.sent(weights).items()})


def flatten_record(record: ArrayRecord) -> tuple[Structure, Vector]:
    return flatten(arrays_of(record))


def report_content(payload: bytes) -> RecordDict:
    return RecordDict({REPORT: ConfigRecord({PAYLOAD: payload})})
