"""A user's own code and data: what is taken for inputs, labels and clients, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sqsgd.learning.datasets import given_dataset, load_dataset
from sqsgd.learning.factories import call_factory, find_named
from sqsgd.learning.problem import make_problem
from sqsgd.learning.tables import read_examples, texts_of

pandas = pytest.importorskip("pandas", reason="pandas comes with mlxtend")
ONES, CLASSES = np.ones((4, 2)), np.array([0, 1, 1, 0])


def frame(**changes):
    columns = {"age": [20, 30, 40, 50], "height": [1.5, 1.6, 1.7, 1.8], "label": [0, 1, 1, 0]}
    return pandas.DataFrame({**columns, **changes})


def only(value):
    (part,) = read_examples("mine", value)
    return part


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_code_in_the_working_folder_is_found_and_hides_nothing_that_is_installed(working_folder):
    (working_folder / "beside_me.py").write_text("def make(a): return a\ndef broken(): return 1 / 0\n")
    assert call_factory("beside_me:make", "model", find_named("beside_me:make", "model"), a=42, b=1) == 42
    with pytest.raises(ValueError, match="dataset 'beside_me:broken': the factory failed: ZeroDivisionError"):
        load_dataset("beside_me:broken")
    (working_folder / "wave.py").write_text("def open(): return 'shadow'\n")
    sys.modules.pop("wave", None)
    assert Path(find_named("wave:open", "model").__code__.co_filename).parent != working_folder
    (working_folder / "with_bad_import.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):  # not the name's fault
        find_named("with_bad_import:make", "model")


def test_a_frame_is_its_numeric_columns_and_the_column_of_labels():
    part = only(frame(smokes=[True, False, True, True]))
    assert part.inputs.dtype == torch.float32
    np.testing.assert_allclose(part.inputs, [[20, 1.5, 1], [30, 1.6, 0], [40, 1.7, 1], [50, 1.8, 1]])
    assert (part.labels.tolist(), part.owners) == ([0, 1, 1, 0], None)
    table = frame(client=["b", "a", "b", "c"]).rename(columns={"label": "target"})
    part = only(table.assign(target=[0.5, 1.5, 2.5, 3.5]))
    assert (part.labels.tolist(), part.owners.tolist()) == ([0.5, 1.5, 2.5, 3.5], [1, 0, 1, 2])
    part = only((frame()[["age"]], frame()["label"]))
    assert (part.inputs.tolist(), part.labels.tolist()) == ([[20], [30], [40], [50]], [0, 1, 1, 0])


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_whole_numbers_in_a_table_are_quantities(kind):
    table = pandas.DataFrame({"age": [20, 30, 40, 50], "rooms": [1, 2, 3, 4]}).astype(kind)
    for part in (only(table.assign(label=CLASSES)), only((table, CLASSES))):
        assert part.inputs.dtype == torch.float32
        assert part.inputs.tolist() == [[20, 1], [30, 2], [40, 3], [50, 4]]


@pytest.mark.parametrize("together", [lambda a, b: (a, b), lambda a, b: {"train": a, "test": b}])
def test_columns_of_the_test_table_are_found_by_name(together):
    train, test = read_examples("mine", together(frame(), frame()[["label", "height", "age"]]))
    assert torch.equal(train.inputs, test.inputs)
    with pytest.raises(ValueError, match=r"test table has other columns than the training table: age, old"):
        read_examples("mine", together(frame(), frame().rename(columns={"age": "old"})))
    inputs, labels = frame()[["age", "height"]], frame()["label"]
    train, test = read_examples("mine", together((inputs, labels), (inputs[["height", "age"]], labels)))
    assert torch.equal(train.inputs, test.inputs)


def test_arrays_keep_their_kind():
    read_only = np.ones((4, 2))[::-1]
    read_only.flags.writeable = False
    assert only([read_only, CLASSES]).inputs.dtype == torch.float32
    assert only((np.full((4, 1, 2, 2), 255, np.uint8), CLASSES)).inputs.max() == 1
    assert only((np.full((4, 2), 255), CLASSES)).inputs.dtype == torch.int64
    assert only((np.ones((6, 3), int), np.ones((6, 3), int))).labels.dtype == torch.int64
    assert only((np.ones((6, 3)), np.ones((6, 2), bool))).labels.dtype == torch.float32


def test_texts_are_rows_of_bytes():
    texts = ["tea", "caf\u00e9 au lait", "", "\U0001f375"]
    part = only((texts, CLASSES))
    assert (part.inputs.dtype, part.inputs.shape) == (torch.uint8, (4, 13))
    assert texts_of(part.inputs) == texts
    data = given_dataset("mine", ((texts, CLASSES), (np.array(["a", "b" * 20]), CLASSES[:2])))
    assert data.train_inputs.shape[1] == data.test_inputs.shape[1] == 20
    assert texts_of(data.train_inputs) == texts
    with pytest.raises(ValueError, match="texts need features"):
        make_problem(data, torch.nn.Linear(20, 2), clients=2, partition_scheme="iid", seed=1, batch=1)


BAD = {
    "a text column": (frame(town=list("abcd")), "column 'town': expected real numbers.*get_dummies"),
    "missing values": (frame(age=[20, None, 40, None]), "column 'age': missing values.*fill them in"),
    "text labels": (frame(label=list("abba")), r"column 'label': expected real numbers.*cat\.codes"),
    "no labels": (
        frame().drop(columns="label"),
        "has none of the columns label, labels, target.*It has age, h",
    ),
    "two of a name": (pandas.concat([frame(), frame()[["age"]]], axis=1), "two columns of one name"),
    "test without labels": ((frame(), frame().drop(columns="label")), "test table has none of the columns"),
    "nothing": (None, r"returned a NoneType; expected \(inputs, labels\)"),
    "one client": ((ONES, CLASSES, ["a"]), r"clients have shape \(1,\); expected one for each of the 4"),
    "mixed clients": (frame(client=[1, "b", 1, "b"]), "clients are of types int and str"),
    "flat": ((np.ones(4), CLASSES), r"write inputs.reshape\(-1, 1\)"),
    "rows of bytes": ((np.ones((4, 2), np.uint8), CLASSES), r"rows of uint8, .*write .astype\('float32'\)"),
    "lengths": ((ONES, CLASSES[:3]), r"inputs have shape \(4, 2\) and labels \(3,\)"),
    "negative": ((np.ones((5, 2)), np.array([0, 1, -1, 0, 1])), "labels run from -1 to 1; expected 0 to 1"),
    "shapes": (
        ((ONES, CLASSES), (np.ones((4, 3)), CLASSES)),
        r"training inputs have shape \(2,\), test inputs \(3,",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_learned_from_is_named(kind):
    value, words = BAD[kind]
    with pytest.raises(ValueError, match=f"dataset 'mine'.*{words}"):
        given_dataset("mine", value)


@pytest.fixture
def hugging_face():
    """Makes a dataset of columns."""
    return pytest.importorskip("datasets", reason="not installed: pip install datasets").Dataset.from_dict


def test_hugging_face_columns_are_joined_and_found_by_name(hugging_face):
    part = only(hugging_face({"a": [1.0, 2.0], "b": [[3.0, 4.0], [5.0, 6.0]], "label": [0, 1]}))
    assert (part.inputs.tolist(), part.labels.tolist()) == ([[1, 3, 4], [2, 5, 6]], [0, 1])
    train, test = (
        hugging_face({**columns, "label": [0, 1]})
        for columns in ({"a": [1, 2], "b": [3, 4]}, {"b": [3, 4], "a": [1, 2]})
    )
    first, second = read_examples("mine", {"train": train, "validation": test})
    assert first.inputs.dtype == torch.float32
    assert first.inputs.tolist() == second.inputs.tolist() == [[1, 3], [2, 4]]


def test_hugging_face_tokens_and_images(hugging_face):
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6]], "labels": [[2, 3, -100], [5, 6, -100]], "client": ["u", "v"]}
    part = only(hugging_face(rows))
    assert part.inputs.dtype == part.labels.dtype == torch.int64
    assert (part.labels[0].tolist(), part.owners.tolist()) == ([2, 3, -100], [0, 1])
    pytest.importorskip("PIL", reason="Pillow is not installed")
    datasets = pytest.importorskip("datasets")
    about = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [np.full((2, 4, 3), 255, np.uint8)] * 2, "label": [0, 1]}
    images = only(hugging_face(columns, features=about)).inputs
    assert (images.shape, images.unique().tolist()) == ((2, 3, 2, 4), [1.0])
