"""Columns of tables: their order, their types, and which of them cannot be learned from."""

import numpy as np
import pytest
import torch
from small_tables import frame, only, pandas

from sqsgd.learning.datasets import given_dataset
from sqsgd.learning.own_data import read_parts


def swapped(table):
    return table[["label", "height", "age"]]


@pytest.mark.parametrize("together", [lambda a, b: (a, b), lambda a, b: {"train": a, "test": b}])
def test_columns_of_the_test_table_are_found_by_name(together):
    train, test = read_parts("mine", together(frame(), swapped(frame())))
    assert torch.equal(train.inputs, test.inputs)
    with pytest.raises(
        ValueError, match=r"test table has other columns .*: it lacks age, and only it has old"
    ):
        read_parts("mine", together(frame(), frame().rename(columns={"age": "old"})))


def test_columns_of_a_pair_of_inputs_and_labels_too():
    inputs, labels = frame()[["age", "height"]], frame()["label"]
    train, test = read_parts("mine", ((inputs, labels), (inputs[["height", "age"]], labels)))
    assert torch.equal(train.inputs, test.inputs)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int8])
def test_whole_numbers_in_a_table_are_quantities(kind):
    table = pandas.DataFrame({"age": [20, 30, 40, 50], "rooms": [1, 2, 3, 4]}).astype(kind)
    for part in (only(table.assign(label=[0, 1, 1, 0])), only((table, np.array([0, 1, 1, 0])))):
        assert part.inputs.dtype == torch.float32
        assert part.inputs.tolist() == [[20, 1], [30, 2], [40, 3], [50, 4]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (frame(label=list("abba")), r"'label' holds text .*astype\("),
        (frame(age=[1.0, np.inf, 2.0, 3.0]), "column 'age' has missing values, or numbers that are infinite"),
        (frame(age=[1.0, 1e300, 2.0, 3.0]), "column 'age' has .* too large for float32"),
        (
            pandas.concat([frame(), frame()[["age"]]], axis=1),
            "table has two columns called 'age'; rename or drop one",
        ),
        ((frame().rename(columns={"label": "y"}),) * 2, "training table has none of the columns label"),
        ((frame(), frame().rename(columns={"label": "y"})), "test table has none of the columns label"),
        (
            {"train": frame().rename(columns={"label": "y"}), "test": frame()},
            "training table has none of the columns label",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_named(value, words):
    with pytest.raises(ValueError, match=words):
        read_parts("mine", value)


@pytest.fixture
def hugging_face():
    """Makes a dataset of columns."""
    return pytest.importorskip("datasets", reason="not installed: pip install datasets").Dataset.from_dict


def test_hugging_face_columns_are_joined(hugging_face):
    part = only(hugging_face({"a": [1.0, 2.0], "b": [[3.0, 4.0], [5.0, 6.0]], "label": [0, 1]}))
    assert part.inputs.tolist() == [[1, 3, 4], [2, 5, 6]]
    assert part.labels.tolist() == [0, 1]


def test_hugging_face_tokens_and_labels_per_token(hugging_face):
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6]], "labels": [[2, 3, -100], [5, 6, -100]], "client": ["u", "v"]}
    part = only(hugging_face(rows))
    assert part.inputs.dtype == part.labels.dtype == torch.int64
    assert (part.labels[0].tolist(), part.owners.tolist()) == ([2, 3, -100], [0, 1])


def test_hugging_face_text_and_ragged_rows_are_refused(hugging_face):
    with pytest.raises(ValueError, match="column 'text' holds text; encode it"):
        only(hugging_face({"text": ["a", "b"], "label": [0, 1]}))
    with pytest.raises(ValueError, match="column 'words' holds rows of different lengths"):
        only(hugging_face({"words": [[1], [1, 2]], "label": [0, 1]}))


def test_hugging_face_training_and_test(hugging_face):
    train, test = (hugging_face({"a": [[1.0] * 3] * n, "label": [0, 1] * (n // 2)}) for n in (6, 2))
    data = given_dataset("mine", {"train": train, "test": test})
    assert (len(data.train_labels), len(data.test_labels), data.classes) == (6, 2, 2)


def test_hugging_face_columns_of_the_test_part_are_found_by_name(hugging_face):
    train, test = (hugging_face({**columns, "label": [0, 1]})
                   for columns in ({"a": [1, 2], "b": [3, 4]}, {"b": [3, 4], "a": [1, 2]}))  # fmt: skip
    first, second = read_parts("mine", {"train": train, "test": test})
    assert first.inputs.dtype == torch.float32
    assert first.inputs.tolist() == second.inputs.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match="training table has none of the columns label"):
        read_parts("mine", {"train": train.rename_column("label", "y"), "test": test})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 1]]}, "input_ids and attention_mask"),
        ({"a": [1.0, None]}, "column 'a' has missing values"),
        ({"image": [[[1.0]], [[1.0]]], "id": [1, 2]}, "in image are not joined"),
        ({"words": [[1], [1, 2]]}, "column 'words' holds rows of different lengths or images .*; pad or"),
        ({"a": [1.0, 2.0], "label": ["x", "y"]}, "column 'label' holds text; number the classes"),
        ({"a": [1.0, 2.0], "client": ["x", None]}, "clients have 1 missing values"),
        ({"a": [], "label": []}, "table has no rows"),
    ],
)
def test_hugging_face_columns_that_cannot_be_learned_from_are_named(hugging_face, columns, words):
    with pytest.raises(ValueError, match=words):
        only(hugging_face({"label": [0, 1], **columns}))
