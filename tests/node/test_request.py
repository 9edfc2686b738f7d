"""A request and its model: what travels comes back, malformed fields are refused."""

import json

import numpy as np
import pytest
from asking import DIM, request

from sqsgd.federation.node.request import MalformedRequest, Request

SENT = [
    {},
    {"client": 2**64 - 2, "seed": 2**63 + 5, "round": 2**31 - 1, "clip": 0.5, "bound": 1e-3},
    {"options": {"levels": 4}, "alpha": 0.25, "beta": 0.5, "by_slot": True},
]
OTHER = np.ones(DIM, np.float32)


@pytest.mark.parametrize("changes", SENT)
def test_a_request_comes_back_from_its_fields(changes):
    sent = request(**changes)
    assert Request.from_fields(json.loads(json.dumps(sent.to_fields()))) == sent


@pytest.mark.parametrize("key", request().to_fields())
def test_every_key_is_needed_and_has_one_type(key):
    values = request().to_fields()
    for wrong in ({**values, key: b"bytes"}, {name: value for name, value in values.items() if name != key}):
        with pytest.raises(MalformedRequest, match=f"{key} = .* must be of type"):
            Request.from_fields(wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"}, {"scheme": "sqsgd-stateless"}, {"epsilon": 100.0}, {"bytes": 64},
        {"options": {"levels": 4}}, {"round": 1}, {"client": 6}, {"seed": 10}, {"bound": 21.0}, {"clip": 1.0},
        {"alpha": 0.5}, {"beta": 0.5}, {"weights": OTHER}, {"by_slot": True},
    ],
)  # fmt: skip
def test_whatever_a_report_depends_on_is_in_the_identity(changes):
    assert request(**changes).identity != request().identity
