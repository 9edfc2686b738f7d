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
        ("a", np.zeros(3, np.float32), r"'a' is float32 \(3,\); the model's is float32 \(2,\)"),
        ("a", np.zeros(2, np.float64), r"'a' is float64 \(2,\)"),
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
        (np.zeros(2, np.float64), "is float64: a model's weights must be float32"),
        (np.zeros(2, np.complex64), "is complex64"),
        (np.zeros(2, np.int64), "nothing to train"),
        (np.zeros(0, np.float32), "nothing to train"),
    ],
)
def test_what_is_not_a_model_is_refused(array, words):
    with pytest.raises(ValueError, match=words):
        flatten({"weights": array})


def test_one_bit_changes_the_digest():
    weights = np.zeros(DIM, np.float32)
    changed = weights.copy()
    changed[-1] = -0.0
    assert digest(weights) != digest(changed)
    assert digest(np.repeat(weights, 2)[::2]) == digest(weights)  # strides do not matter
