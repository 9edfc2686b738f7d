"""A request and its model: what travels comes back, malformed fields are refused."""

import dataclasses
import json

import numpy as np
import pytest
from asking import DIM, request

from sqsgd.federation.node.request import MalformedRequest, Request

SENT = [
    {},
    {"client": 2**64 - 2, "seed": 2**63 + 5, "round": 2**31 - 1, "clip": 0.5, "bound": 1e-3},
    {"options": {"levels": 4}, "alpha": 0.25, "beta": 0.5, "base": 0, "keep": True},
    {"types": "df", "by_slot": True},
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


def test_whole_numbers_travel_as_floats_where_floats_are_meant():
    sent = request(alpha=1, beta=2, bound=20)
    assert Request.from_fields(sent.to_fields()) == sent


@pytest.mark.parametrize("types", ["g", "d g", "d" * 65537])
def test_types_of_weights_are_float_types(types):
    with pytest.raises(MalformedRequest, match=r"types = .* must be letters of 'efd'"):
        Request.from_fields({**request().to_fields(), "types": types})


def test_options_have_a_longest_length():
    with pytest.raises(MalformedRequest, match="options has 4097 characters, above 4096"):
        Request.from_fields({**request().to_fields(), "options": " " * 4097})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"}, {"scheme": "sqsgd-stateless"}, {"epsilon": 100.0}, {"bytes": 64},
        {"options": {"levels": 4}}, {"round": 1}, {"client": 6}, {"seed": 10}, {"bound": 21.0}, {"clip": 1.0},
        {"alpha": 0.5}, {"beta": 0.5}, {"weights": OTHER}, {"types": "dd"}, {"by_slot": True},
    ],
)  # fmt: skip
def test_whatever_a_report_depends_on_is_in_the_identity(changes):
    assert request(**changes).identity != request().identity


def test_how_the_model_travels_is_not_in_the_identity():
    """The same round, sent again with the whole model, is answered with the same bytes."""
    assert request(round=1, base=0, keep=True).identity == request(round=1).identity


def test_a_request_has_no_field_that_does_not_travel():
    fields = {field.name for field in dataclasses.fields(Request)} - {"task"}
    assert fields <= set(request(by_slot=True, types="d").to_fields())
