"""Requests, models and reports as NVFlare's Shareables.

Down: the workflow's own task data with the request in one header, to which each client adds its number. Up:
one ``bytes`` payload, or one of the fixed reasons of federation/node/policy.py.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from sqsgd._internal.checks import Vector
from sqsgd.federation.node.request import MalformedRequest, NotAsked, Request
from sqsgd.federation.node.structure import Arrays, Structure

REQUEST = "sqsgd.request"
REPORT = "sqsgd.report"
REASON = "sqsgd.reason"
_CLIENT = "client"


def client_number(name: str) -> int:
    """Return the number of a client in requests and reports: 64 bits of a digest of its name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_request(task_data: Shareable, request: Request) -> None:
    fields = request.to_fields()
    del fields[_CLIENT]
    task_data.set_header(REQUEST, fields)


def request_fields(task_data: Shareable) -> Mapping[str, object]:
    """Return the fields of a request as they arrived; none without a request."""
    fields = task_data.get_header(REQUEST)
    return fields if isinstance(fields, dict) else {}


def read_request(task_data: Shareable, client: int) -> Request:
    """Return the request of a task's data to this client. Raises MalformedRequest."""
    fields = request_fields(task_data)
    if not fields:
        raise NotAsked(f"the header {REQUEST!r} is missing: the server does not use SqsgdAggregator")
    if _CLIENT in fields:
        raise MalformedRequest("the request names a client; one for all clients names none")
    return Request.from_fields({**fields, _CLIENT: str(client)})


def model_of(task_data: Shareable) -> Arrays:
    """Return the model that a task starts from. Raises MalformedRequest unless there is one."""
    try:
        return _arrays(task_data, DataKind.WEIGHTS)[1]
    except ValueError as error:
        raise MalformedRequest(str(error)) from None


def change_of(result: object, structure: Structure, weights: Vector) -> Vector:
    """Return the model before an executor's training minus the one after. Raises ValueError without one."""
    if not isinstance(result, Shareable) or result.get_return_code() != ReturnCode.OK:
        raise ValueError(f"the executor did not return a model but {type(result).__name__}")
    kind, arrays = _arrays(result, DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
    after = structure.flatten(arrays)
    return -after if kind == DataKind.WEIGHT_DIFF else weights - after


def report(payload: bytes) -> Shareable:
    return Shareable({REPORT: payload})


def refusal(reason: str) -> Shareable:
    """The same without a report; for return codes but OK, NVFlare's workflows stop the job or hide it."""
    return Shareable({REASON: reason})


def _arrays(shareable: Shareable, *kinds: str) -> tuple[str, dict[str, Any]]:
    dxo = from_shareable(shareable)  # raises ValueError
    if dxo.data_kind not in kinds or not isinstance(dxo.data, dict) or not dxo.data:
        raise ValueError(f"a DXO of kind {dxo.data_kind!r}; it must be {' or '.join(kinds)}, and not empty")
    return dxo.data_kind, {name: np.asarray(value) for name, value in dxo.data.items()}
