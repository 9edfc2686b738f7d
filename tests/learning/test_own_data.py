"""Tables and arrays of a user: what is taken for inputs, labels and clients, and what is refused."""

import numpy as np
import pytest
import torch
from small_tables import frame, only, pandas

from sqsgd.learning.datasets import given_dataset
from sqsgd.learning.own_data import read_parts


def test_a_frame_is_its_numeric_columns_and_the_column_of_labels():
    part = only(frame(smokes=[True, False, True, True]))
    assert part.inputs.dtype == torch.float32
    assert part.inputs.tolist() == [[20, 1.5, 1], [30, pytest.approx(1.6), 0], [40, pytest.approx(1.7), 1],
                                    [50, pytest.approx(1.8), 1]]  # fmt: skip
    assert part.labels.tolist() == [0, 1, 1, 0]
    assert part.owners is None


def test_numbers_to_predict_stay_numbers_and_clients_are_numbered():
    table = frame(client=["b", "a", "b", "c"]).rename(columns={"label": "target"})
    part = only(table.assign(target=[0.5, 1.5, 2.5, 3.5]))
    assert part.labels.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert part.owners.tolist() == [1, 0, 1, 2]
    assert part.inputs.shape == (4, 2)


def test_a_frame_and_a_series_are_inputs_and_labels():
    table = frame()
    part = only((table[["age"]], table["label"]))
    assert (part.inputs.tolist(), part.labels.tolist()) == ([[20], [30], [40], [50]], [0, 1, 1, 0])


@pytest.mark.parametrize("together", [lambda a, b: (a, b), lambda a, b: {"train": a, "test": b}])
def test_two_tables_are_training_and_test(together):
    first, second = read_parts("mine", together(frame(), frame(age=[1, 2, 3, 4])))
    assert (first.inputs[0, 0], second.inputs[0, 0]) == (20, 1)


def test_clients_keep_a_fifth_of_their_own_for_the_test():
    owners = np.repeat(["x", "y", "z"], [10, 10, 4])
    data = given_dataset("mine", (np.arange(48.0).reshape(24, 2), np.arange(24) % 2, owners))
    held = sorted(set(np.arange(0, 48.0, 2)) - set(data.train_inputs[:, 0].tolist()))
    assert len(held) == 4
    assert [sum(place in range(20 * i, 20 * i + 20) for place in held) for i in range(2)] == [2, 2]
    assert np.bincount(data.owners).tolist() == [8, 8, 4]


@pytest.mark.parametrize("each", [1, 4])
def test_clients_with_few_examples_hold_out_every_fifth_of_all(each):
    inputs = np.arange(40.0).reshape(40, 1)
    data = given_dataset("mine", (inputs, np.arange(40) % 2, np.arange(40) // each))
    kept, held = data.train_inputs.flatten().tolist(), data.test_inputs.flatten().tolist()
    assert len(held) == 8
    assert sorted(kept + held) == inputs.flatten().tolist()
    assert np.bincount(data.test_labels).tolist() == [4, 4]
    sizes = np.bincount(data.owners)  # a client whose only example is held out is none
    assert (len(sizes), sizes.min()) == ((32, 1) if each == 1 else (10, 2))


def test_images_are_scaled_and_tokens_are_not():
    assert only((np.full((4, 1, 2, 2), 255, np.uint8), np.zeros(4, int))).inputs.max() == 1
    assert only((np.full((4, 2), 255), np.zeros(4, int))).inputs.dtype == torch.int64


def test_rows_of_labels_keep_their_kind():
    tokens = only((np.ones((6, 3), int), np.ones((6, 3), int)))
    assert tokens.labels.dtype == torch.int64
    sets = only((np.ones((6, 3)), np.ones((6, 2), bool)))
    assert sets.labels.dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (frame(town=["a", "b", "c", "d"]), "column 'town' holds text or categories; encode it .*get_dummies"),
        (frame(kind=pandas.Categorical(list("abab"))), "column 'kind' holds text or categories"),
        (frame(age=[20, None, 40, None]), "column 'age' has 2 missing values; fill them in"),
        (frame(born=pandas.to_datetime(["2020-01-01"] * 4)), "column 'born' holds datetime"),
        (frame(label=["yes", "no", "no", "yes"]), "column 'label' holds text"),
        (frame().drop(columns="label"), "has none of the columns label, labels, target.*It has age, height"),
        (frame(target=[1, 2, 3, 4]), "has label and target of the columns"),
        (frame()[["label"]], "has no column besides label"),
        (frame().iloc[:0], "table has no rows"),
        ({"training": frame()}, "returned a dict of training; expected train"),
        (
            (np.ones((4, 2)), np.zeros(4, int), ["a"]),
            r"clients have shape \(1,\); expected one for each of the 4",
        ),
        ((np.ones((4, 2)), np.full(4, np.inf)), "labels contain NaN or infinity"),
        ((np.ones(4), np.zeros(4, int)), r"inputs have shape \(4,\); .*write inputs.reshape\(-1, 1\)"),
        ((np.ones((4, 2), np.uint8), np.zeros(4, int)), r"rows of uint8, .*write .astype\('float32'\)"),
        ((np.ma.masked_less(np.ones((4, 2)), 2), np.zeros(4, int)), "inputs are a masked array; fill in"),
        ({"train": np.ones((4, 2)), "test": np.ones((4, 2))}, "training part is a ndarray; expected"),
        ((np.ones((4, 2)), np.zeros(4, int), ["a", "b", None, "a"]), "clients have 1 missing values; name"),
        ((np.ones((4, 2)), np.zeros(4, int), [1.0, np.nan, 2.0, np.nan]), "clients have 2 missing values"),
        (frame(client=[1, "b", 1, "b"]), "clients are of types int and str; make all of them text"),
        ((frame()[["age"]], [0, 1, 1, 0]), "labels are a list; expected an array"),
        (
            (np.ones((4, 2)), np.full(4, 1 << 20)),
            "labels go up to 1,048,576; .* write numbers to predict as floats",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_named(value, words):
    with pytest.raises(ValueError, match=words):
        read_parts("mine", value)


def test_training_and_test_labels_must_have_one_shape():
    with pytest.raises(ValueError, match=r"training labels have shape \(2,\), test labels \(3,\)"):
        given_dataset("mine", ((np.ones((5, 2)), np.ones((5, 2))), (np.ones((5, 2)), np.ones((5, 3)))))
