"""A request and its model: what travels comes back, malformed fields are refused."""

import json

import numpy as np
import pytest
from asking import DIM, request

from sqsgd.federation.node.request import MalformedRequest, Request
from sqsgd.federation.node.structure import flatten, untrained

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


def test_running_statistics_are_named_and_no_variance_is_below_zero():
    """Of batch normalisation in PyTorch; its counts of batches are no weights."""
    ones, count = np.ones(3, np.float32), np.array(7)
    model = {"0.weight": ones, "1.running_mean": ones, "1.running_var": ones, "1.num_batches_tracked": count}
    structure, weights = flatten(model)
    (told,) = untrained(structure)
    assert "running statistics: 1.running_mean, 1.running_var, 1.num_batches_tracked" in told
    after = structure.sent(weights - 2)
    assert list(after) == list(model)
    assert [array.tolist() for array in after.values()] == [[-1.0] * 3, [-1.0] * 3, [0.0] * 3, 7]
