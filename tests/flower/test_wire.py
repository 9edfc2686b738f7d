"""What travels: a request survives, equal requests are known, a model is one vector and back."""

import dataclasses

import numpy as np
import pytest
from federation import DIM, message, model, request
from flwr.app import Array, ArrayRecord, ConfigRecord

from sqsgd.flower import wire
from sqsgd.flower.wire import MalformedRequest, read_request, request_record, take_apart

OTHER = np.ones(DIM, np.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"client": 2**64 - 2, "seed": 2**63 + 5, "round": 2**31 - 1, "clip": 0.5, "bound": 1e-3},
        {"options": {"levels": 4}, "alpha": 0.25, "beta": 0.5, "base": 0, "keep": True},
    ],
)
def test_a_request_arrives_as_it_was_sent(changes):
    sent = request(**changes)
    assert read_request(message(sent).content[wire.REQUEST]) == sent


@pytest.mark.parametrize("key", request_record(request()))
def test_every_key_is_needed_and_has_one_type(key):
    values = dict(request_record(request()))
    for wrong in ({**values, key: b"bytes"}, {name: value for name, value in values.items() if name != key}):
        with pytest.raises(MalformedRequest, match=f"{key} = .* must be of type"):
            read_request(ConfigRecord(wrong))


def test_a_truth_is_no_number():
    with pytest.raises(MalformedRequest, match="round = True must be of type int"):
        read_request(ConfigRecord({**request_record(request()), "round": True}))


def test_what_is_quoted_is_short():
    with pytest.raises(MalformedRequest) as caught:
        read_request(ConfigRecord({**request_record(request()), "epsilon": "9" * 10**6}))
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"}, {"scheme": "sqsgd-stateless"}, {"epsilon": 100.0}, {"bits": 512},
        {"options": {"levels": 4}}, {"round": 1}, {"client": 6}, {"seed": 10}, {"bound": 21.0}, {"clip": 1.0},
        {"alpha": 0.5}, {"beta": 0.5}, {"weights": OTHER},
    ],
)  # fmt: skip
def test_whatever_a_report_depends_on_is_in_the_identity(changes):
    assert request(**changes).identity != request().identity


def test_how_the_model_travels_is_not():
    """The same round, sent anew as a whole model, is answered with the same bytes."""
    assert request(round=1, base=0, keep=True).identity == request(round=1).identity


def mixed():
    """Weights, a number among them, and two arrays that hold none; not sorted by name."""
    return ArrayRecord(
        {
            "z": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "steps": Array(np.array(3, np.int64)),
            "scale": Array(np.array(7.0, np.float32)),
            "mask": Array(np.array([True, False])),
            "a": Array(np.array([8.0, 9.0], np.float32)),
        }
    )


def test_a_model_is_one_vector_and_back():
    structure, weights = take_apart(mixed())
    assert weights.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert structure.dim == 9
    back = structure.record(2 * weights)
    assert list(back) == ["z", "steps", "scale", "mask", "a"]
    assert {name: array.numpy().shape for name, array in back.items()} == {
        "z": (2, 3), "steps": (), "scale": (), "mask": (2,), "a": (2,),
    }  # fmt: skip
    assert structure.vector(back).tolist() == (2 * weights).tolist()
    assert back["steps"].numpy() == 3


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("more", np.zeros(1, np.float32), "other names than the model's: more"),
        ("a", None, "other names than the model's: a"),
        ("a", np.zeros(3, np.float32), r"'a' is float32 \(3,\); the model's is float32 \(2,\)"),
        ("a", np.zeros(2, np.float64), r"'a' is float64 \(2,\)"),
        ("z", np.zeros((3, 2), np.float32), r"'z' is float32 \(3, 2\)"),
    ],
)
def test_arrays_of_another_model_are_refused(name, array, words):
    structure, _ = take_apart(mixed())
    other = {key: value for key, value in mixed().items() if key != name}
    if array is not None:
        other[name] = Array(array)
    with pytest.raises(ValueError, match=words):
        structure.vector(ArrayRecord(other))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(2, np.float64), "is float64: a model's weights must be float32"),
        (np.zeros(2, np.complex64), "is complex64"),
        (np.zeros(2, np.int64), "nothing to train"),
        (np.zeros(0, np.float32), "nothing to train"),
    ],
)
def test_what_is_no_model_is_refused(array, words):
    with pytest.raises(ValueError, match=words):
        take_apart(ArrayRecord({"weights": Array(array)}))


def test_one_bit_changes_the_digest():
    weights = np.zeros(DIM, np.float32)
    changed = weights.copy()
    changed[-1] = -0.0
    assert wire.digest(weights) != wire.digest(changed)
    assert wire.digest(np.repeat(weights, 2)[::2]) == wire.digest(weights)  # wherever its numbers lie


def test_sizes_are_those_of_the_values_and_their_names():
    assert wire.payload_size(wire.report_record(b"")) == len("payload")
    assert wire.payload_size(ConfigRecord({"a": 1, "bc": "def", "d": b"1234"})) == 1 + 8 + 2 + 3 + 1 + 4
    assert wire.payload_size(model()) >= 4 * DIM
    sent = message(request())
    assert wire.serialised_size(sent) > wire.payload_size(sent.content["arrays"])


def test_a_request_has_no_field_that_does_not_travel():
    fields = {field.name for field in dataclasses.fields(wire.Request)} - {"task"}
    assert fields <= set(request_record(request()))
