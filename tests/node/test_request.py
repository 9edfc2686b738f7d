"""A request and its model: what travels comes back, malformed fields are refused."""

import dataclasses
import json

import numpy as np
import pytest
from asking import DIM, ask, request
from sqsgd.training import Settings, State

from sqsgd import federated, make_scheme, seeded_rng
from sqsgd.federated.optimizers import Optimizer
from sqsgd.node import policy
from sqsgd.node.request import MalformedRequest, Request, apply_update, make_update
from sqsgd.node.structure import digest, flatten, untrained

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


def test_a_boolean_is_not_a_number():
    with pytest.raises(MalformedRequest, match="round = True must be of type int"):
        Request.from_fields({**request().to_fields(), "round": True})


@pytest.mark.parametrize("types", ["g", "d g", "d" * 65537])
def test_types_of_weights_are_float_types(types):
    with pytest.raises(MalformedRequest, match=r"types = .* must be letters of 'efd'"):
        Request.from_fields({**request().to_fields(), "types": types})


def test_options_have_a_longest_length():
    with pytest.raises(MalformedRequest, match="options has 4097 characters, above 4096"):
        Request.from_fields({**request().to_fields(), "options": " " * 4097})


def test_what_is_quoted_is_short():
    with pytest.raises(MalformedRequest) as caught:
        Request.from_fields({**request().to_fields(), "epsilon": "9" * 10**6})
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"}, {"scheme": "sqsgd-stateless"}, {"epsilon": 100.0}, {"bytes": 64},
        {"options": {"levels": 4}}, {"round": 1}, {"client": 6}, {"seed": 10}, {"bound": 21.0}, {"clip": 1.0},
        {"alpha": 0.5}, {"beta": 0.5}, {"weights": OTHER}, {"types": "dd"},
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


def test_a_report_by_slot_does_not_name_the_node():
    asked = {"scheme": "privunit-index", "epsilon": 8.0}
    usual, by_slot = (request(**asked, by_slot=by_slot) for by_slot in (False, True))
    assert by_slot.identity != usual.identity
    assert by_slot.make_scheme().bits == 8 * (5 + 2)


# ---------------------------------------------------------------- updates of the model

SCHEME = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32)


def report():
    task = request().task
    return task, SCHEME.encode(np.ones(DIM, np.float32), task, seeded_rng(1)), 1.0


def test_an_update_leads_to_the_servers_weights():
    before = np.linspace(-1, 1, DIM, dtype=np.float32)
    settings = Settings(seed=9, optimizer=Optimizer(kind="sgd", rate=0.1), track=False, secure=True)
    state = State(round=0, weights=before, bound=1.0, optimizer={})
    after = federated.server_step(SCHEME, settings, state, [report()])[0].weights
    assert (after != before).any()
    found = apply_update(make_update(0.1, [report()]), SCHEME, request(round=1, base=0), before)
    assert found.tobytes() == after.tobytes()
    assert apply_update(make_update(0.1, []), SCHEME, request(round=1, base=0), before) is before


def test_an_update_of_a_model_that_the_node_does_not_have(tmp_path):
    nothing, asked = make_update(0.1, []), request(round=1, base=0)
    assert ask(tmp_path, asked, update=nothing) == policy.NEEDS_MODEL
    assert isinstance(ask(tmp_path, request()), bytes)  # does not keep the model
    assert ask(tmp_path, asked, update=nothing) == policy.NEEDS_MODEL
    assert isinstance(ask(tmp_path, request(name="kept", keep=True)), bytes)
    assert isinstance(ask(tmp_path, request(name="kept", round=1, base=0), update=nothing), bytes)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"clients": b"123", "reports": b"", "bound": 1.0, "rate": 1.0},
        {"clients": bytes(8), "reports": bytes(49), "bound": 1.0, "rate": 1.0},
        {"clients": "text", "reports": b"", "bound": 1.0, "rate": 1.0},
        {"clients": bytes(8), "reports": bytes(SCHEME.bits // 8), "bound": 1.0, "rate": 1.0},
        {"clients": b"", "reports": b"", "bound": 1.0},
    ],
)
def test_an_update_that_cannot_be_read_is_refused(tmp_path, update):
    """Nothing is computed; also where the model is missing from a request that states one."""
    assert isinstance(ask(tmp_path, request(keep=True)), bytes)
    asked, calls = request(round=1, base=0, model="0" * 32), []
    told = ask(tmp_path, asked, update=update, compute=lambda *_: calls.append(1))
    assert (told, calls) == (policy.NEEDS_MODEL if update.get("clients") == b"" else policy.MALFORMED, [])
    assert ask(tmp_path, request(round=1), update={}) == policy.MALFORMED


# ---------------------------------------------------------------- models as vectors

MIXED = {
    "z": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array(3, np.int64),
    "scale": np.array(7.0, np.float32),
    "mask": np.array([True, False]),
    "a": np.array([8.0, 9.0], np.float32),
}
"""Weights, a scalar among them, and two arrays that hold none; not sorted by name."""


def test_a_model_is_flattened_and_unflattened():
    structure, weights = flatten(MIXED)
    assert weights.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert structure.dim == 9
    back = structure.unflatten(2 * weights)
    assert list(back) == ["z", "steps", "scale", "mask", "a"]
    assert {name: array.shape for name, array in back.items()} == {
        "z": (2, 3), "steps": (), "scale": (), "mask": (2,), "a": (2,),
    }  # fmt: skip
    assert structure.flatten(back).tolist() == (2 * weights).tolist()
    assert back["steps"] == 3


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("more", np.zeros(1, np.float32), "differ from the model's: more"),
        ("a", None, "differ from the model's: a"),
        (
            "a",
            np.zeros(3, np.float32),
            r"'a' is float32 \(3,\); the model's is a float array of shape \(2,\)",
        ),
        ("a", np.zeros(2, np.int64), r"'a' is int64 \(2,\)"),
        ("z", np.zeros((3, 2), np.float32), r"'z' is float32 \(3, 2\)"),
    ],
)
def test_arrays_of_another_model_are_refused(name, array, words):
    structure, _ = flatten(MIXED)
    other = {key: value for key, value in MIXED.items() if key != name}
    if array is not None:
        other[name] = array
    with pytest.raises(ValueError, match=words):
        structure.flatten(other)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(2, np.longdouble), "weights must be float32, float64 or float16"),
        (np.zeros(2, np.complex64), "is complex64"),
        (np.zeros(2, np.int64), "nothing to train"),
        (np.zeros(0, np.float32), "nothing to train"),
    ],
)
def test_what_is_not_a_model_is_refused(array, words):
    with pytest.raises(ValueError, match=words):
        flatten({"weights": array})


TYPED = {
    "half": np.array([0.1, 2.0], np.float16),
    "count": np.array(3),
    "single": np.array([0.1], np.float32),
    "double": np.array(0.1, np.float64),
}


def test_weights_of_other_types_are_float32_in_between():
    structure, weights = flatten(TYPED)
    assert (weights.dtype, structure.types) == (np.float32, "efd")
    back = structure.unflatten(weights)
    assert {name: (array.dtype, array.shape) for name, array in back.items()} == {
        name: (array.dtype, array.shape) for name, array in TYPED.items()
    }
    sent = structure.sent(weights)
    assert {sent[name].dtype for name in structure.shapes} == {np.dtype(np.float32)}
    assert flatten(sent)[1].tolist() == weights.tolist()
    assert structure.flatten(sent).tolist() == weights.tolist()  # whatever float type an app returns
    for wrong in ("e", "efdd"):
        with pytest.raises(ValueError, match="must have 3 letters"):
            structure.typed(wrong)


def test_what_rounding_did_is_no_change_of_the_app():
    """An app in float16 that trains nothing reports nothing, although the server's weights are finer."""
    structure, weights = flatten(TYPED)
    weights = weights + np.float32(1e-5)
    unchanged = structure.unflatten(weights)
    assert structure.change(weights, unchanged).tolist() == [0.0] * 4
    assert weights.tolist() != structure.flatten(unchanged).tolist()  # so it would be one


def test_what_float32_cannot_hold_is_infinite():
    structure, _ = flatten(TYPED)
    assert np.isinf(structure.flatten({**TYPED, "double": np.array(1e300)})[-1])
    assert np.isinf(structure.unflatten(np.full(4, 1e30, np.float32))["half"]).all()


def test_no_app_is_given_a_variance_below_zero():
    """Its root would be NaN. What travels is what the digest is of."""
    norm = {name: np.ones(2, np.float32) for name in ("bn.weight", "bn.running_mean", "bn.running_var")}
    structure, _ = flatten({**norm, "bn.num_batches_tracked": np.array(0)})
    weights = np.arange(6, dtype=np.float32) - 6
    given = structure.unflatten(weights)
    assert given["bn.running_var"].tolist() == [0.0, 0.0]
    assert given["bn.weight"].tolist() == [-6.0, -5.0]
    assert given["bn.num_batches_tracked"] == 0
    assert structure.flatten(structure.sent(weights)).tolist() == weights.tolist()
    for types in ("", "eee"):  # a variance that the app left at zero moves there, in all types
        typed = structure.typed(types)
        assert typed.change(weights, typed.unflatten(weights)).tolist() == [0, 0, 0, 0, *weights[4:]]


def test_one_bit_changes_the_digest():
    weights = np.zeros(DIM, np.float32)
    changed = weights.copy()
    changed[-1] = -0.0
    assert digest(weights) != digest(changed)
    assert digest(np.repeat(weights, 2)[::2]) == digest(weights)  # strides do not matter


def test_running_statistics_and_other_constants_are_named():
    arrays = {
        "bn.weight": np.ones(4, np.float32), "bn.running_mean": np.zeros(4, np.float32),
        "bn.running_var": np.ones(4, np.float32), "bn.num_batches_tracked": np.array(0),
        "mask": np.array([True, False]),
    }  # fmt: skip
    first, second = untrained(flatten(arrays)[0])
    assert "stay as they are: mask" in first
    assert "bn.running_mean, bn.running_var, bn.num_batches_tracked." in second
    assert list(untrained(flatten({"w": np.ones(3, np.float32)})[0])) == []
