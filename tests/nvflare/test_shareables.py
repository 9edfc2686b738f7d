"""Requests, models and reports as Shareables."""

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")
from asking import DIM, arrays, target
from flare import task_data
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from sqsgd.federation.node.request import MalformedRequest
from sqsgd.federation.node.structure import flatten
from sqsgd.federation.nvflare import shareables


def test_a_request_comes_back_with_the_clients_own_number():
    sent = task_data()
    assert "client" not in shareables.request_fields(sent)
    numbers = {name: shareables.client_number(name) for name in ("site-1", "site-2")}
    assert numbers["site-1"] != numbers["site-2"]
    for number in numbers.values():
        assert shareables.read_request(sent, number).task.client == number


def test_a_request_that_names_a_client_or_is_missing_is_malformed():
    sent = task_data()
    shareables.request_fields(sent)["client"] = "5"
    with pytest.raises(MalformedRequest, match="names a client"):
        shareables.read_request(sent, 5)
    for header in (None, "text", {}):
        sent.set_header(shareables.REQUEST, header)
        with pytest.raises(MalformedRequest, match="there is no header"):
            shareables.read_request(sent, 5)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_the_change_is_the_model_before_minus_the_model_after(kind):
    structure, weights = flatten(arrays(0.5))
    after = target(5)
    vector = after if kind == DataKind.WEIGHTS else after - weights
    result = DXO(kind, data=structure.unflatten(vector)).to_shareable()
    np.testing.assert_allclose(shareables.change_of(result, structure, weights), weights - after, atol=1e-6)


@pytest.mark.parametrize(
    "result",
    [
        None,
        Shareable(),
        make_reply(ReturnCode.EXECUTION_EXCEPTION),
        DXO(DataKind.METRICS, data={"accuracy": 0.5}).to_shareable(),
        DXO(DataKind.WEIGHTS, data={"first": np.zeros(DIM, np.float32)}).to_shareable(),
    ],
)
def test_what_is_not_a_model_has_no_change(result):
    structure, weights = flatten(arrays())
    with pytest.raises(ValueError, match=r"."):
        shareables.change_of(result, structure, weights)
