"""Requests, models and reports as NVFlare's Shareables.

Down: the workflow's own task data, which hold the model, with the request in one header. All clients get the
same request; each adds its own number, which follows from its name. Up: a Shareable with one ``bytes``
payload, or with one of the fixed reasons of federation/node/policy.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from sqsgd._internal.checks import Vector
from sqsgd.federation.node.request import Download, MalformedRequest, Request
from sqsgd.federation.node.structure import Arrays, Structure

REQUEST = "sqsgd.request"
REPORT = "sqsgd.report"
REASON = "sqsgd.reason"
_CLIENT = "client"


def client_number(name: str) -> int:
    """The number of a client in requests and reports: 64 bits of a digest of its name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_request(task_data: Shareable, request: Request) -> None:
    """Put a request for all clients into the data of a task."""
    fields = dict(request.to_fields())
    del fields[_CLIENT]
    task_data.set_header(REQUEST, fields)


def request_fields(task_data: Shareable) -> Mapping[str, object]:
    """The fields of a request as they arrived; none if there is no request."""
    fields = task_data.get_header(REQUEST)
    return fields if isinstance(fields, dict) else {}


def read_request(task_data: Shareable, client: int) -> Request:
    """The request of a task's data to this client; raises MalformedRequest."""
    fields = request_fields(task_data)
    if not fields:
        raise MalformedRequest(f"there is no header {REQUEST!r}: the server does not use SqsgdAggregator")
    if _CLIENT in fields:
        raise MalformedRequest("the request names a client; one for all clients names none")
    return Request.from_fields({**fields, _CLIENT: str(client)})


def model_of(task_data: Shareable) -> Arrays:
    """The model that a task starts from; raises ValueError unless there is one."""
    return _arrays(task_data, DataKind.WEIGHTS)[1]


def download_of(task_data: Shareable) -> Download:
    """The model that comes with a request; updates of an earlier model are not used with NVFlare."""

    def arrays() -> Arrays:
        try:
            return model_of(task_data)
        except ValueError as error:
            raise MalformedRequest(str(error)) from None

    return Download(arrays=arrays)


def with_model(task_data: Shareable, structure: Structure, weights: Vector) -> Shareable:
    """The same task data with this model, for the executor."""
    return DXO(DataKind.WEIGHTS, data=structure.unflatten(weights)).update_shareable(task_data)


def model_shareable(structure: Structure, weights: Vector) -> Shareable:
    """The result of an aggregation, as float32, in which models travel."""
    return DXO(DataKind.WEIGHTS, data=structure.sent(weights)).to_shareable()


def change_of(result: object, structure: Structure, weights: Vector) -> Vector:
    """The model before an executor's training minus the model after it; ValueError if there is none."""
    if not isinstance(result, Shareable) or result.get_return_code() != ReturnCode.OK:
        raise ValueError(f"the executor did not return a model but {type(result).__name__}")
    kind, arrays = _arrays(result, DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
    return -structure.flatten(arrays) if kind == DataKind.WEIGHT_DIFF else structure.change(weights, arrays)


def report(payload: bytes) -> Shareable:
    """A client's whole answer."""
    return Shareable({REPORT: payload})


def refusal(reason: str) -> Shareable:
    """A client's whole answer if it sends no report.

    The return code is OK: for others, NVFlare's workflows stop the job or hide the reason.
    """
    return Shareable({REASON: reason})


def _arrays(shareable: Shareable, *kinds: str) -> tuple[str, dict[str, Any]]:
    dxo = from_shareable(shareable)  # raises ValueError
    if dxo.data_kind not in kinds or not isinstance(dxo.data, dict) or not dxo.data:
        raise ValueError(f"a DXO of kind {dxo.data_kind!r}; it must be {' or '.join(kinds)}, and not empty")
    return dxo.data_kind, {name: np.asarray(value) for name, value in dxo.data.items()}
