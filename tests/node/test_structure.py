"""A model is one vector and back; arrays of another model are refused."""

import numpy as np
import pytest
from asking import DIM

from sqsgd.node.structure import digest, flatten

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
