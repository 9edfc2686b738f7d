"""Datasets as tensors: shapes, constants, orientation and splits; and who says what in a play."""

import importlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from small_data import encode_idx, small_contents, small_source, write

from sqsgd.learning.datasets import first_tests, given_dataset, hold_out, load_dataset, load_source
from sqsgd.learning.files import SOURCES, digits_apart
from sqsgd.learning.partition import partition

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SQSGD_DATA") or ROOT.parent / "shared" / "data")


@pytest.fixture
def shakespeare(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("tools.shakespeare")


def test_mnist5k_is_split_evenly_over_the_digits():
    data = load_dataset("mnist5k")
    assert (data.in_shape, data.classes) == ((1, 28, 28), 10)
    assert (data.train_inputs.dtype, data.train_labels.dtype) == (torch.float32, torch.int64)
    assert data.train_labels.bincount().tolist() == [400] * 10
    assert data.test_labels.bincount().tolist() == [100] * 10
    assert data.held_out == "1,000 held-out images of MNIST's training set"
    train, test = (
        {image.tobytes() for image in each.numpy()} for each in (data.train_inputs, data.test_inputs)
    )
    assert (len(train), len(test), train & test) == (4000, 1000, set())
    # Scaled, then normalised with the published constants.
    assert data.train_inputs.min().item() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-6)
    assert data.train_inputs.max().item() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-6)
    # A one is a vertical stroke, with ink in many rows and few columns; not so in a transposed table.
    ones = (data.test_inputs[data.test_labels == 1] > 0).squeeze(1)
    rows, columns = ones.any(dim=2).sum(dim=1).float().mean(), ones.any(dim=1).sum(dim=1).float().mean()
    assert rows > 1.8 * columns


@pytest.mark.parametrize(
    ("name", "title", "sizes"),
    [
        ("mnist", "MNIST test set (10,000 images)", (60_000, 10_000, 10)),
        ("fashion-mnist", "Fashion-MNIST test set (10,000 images)", (60_000, 10_000, 10)),
        ("emnist", "emnist-digits56k (trained on 56,478 digits of the by-class test", (56_478, 10_000, 10)),
        ("emnist-byclass", "EMNIST by-class test split, every fifth", (93_083, 23_240, 62)),
    ],
)
def test_the_public_sets_load_and_have_the_published_moments(name, title, sizes):
    """Without its training split, ``emnist`` is another task, and says so."""
    try:
        data = load_dataset(name, SHARED)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if name == "emnist" and len(data.train_labels) == 60_000:
        pytest.skip("the official training split is here")
    assert data.train_inputs.is_contiguous()
    assert data.held_out.startswith(title)
    assert (len(data.train_labels), len(data.test_labels), data.classes) == sizes
    if name.startswith("emnist"):
        tested = {image.numpy().tobytes() for image in data.test_inputs}
        shared = sum(image.numpy().tobytes() in tested for image in data.train_inputs)
        assert name == "emnist-byclass" or shared == 0
        train, test = data.train_labels.bincount(), data.test_labels.bincount()
        assert name == "emnist" or torch.equal(test, (train + test) // 5)
        return
    assert abs(data.train_inputs.mean().item()) < 1e-3
    assert abs(data.train_inputs.std().item() - 1) < 1e-3


def test_images_of_the_test_split_are_not_trained_on():
    images = np.arange(6, dtype=np.uint8)[:, None, None].repeat(2, 1)
    labels = np.array([3, 10, 4, 9, 61, 0], np.uint8)
    train, kept, test, _ = digits_apart(images, labels, images[[3, 4]], labels[[3, 4]])
    assert (train[:, 0, 0].tolist(), kept.tolist(), test[:, 0, 0].tolist()) == ([0, 2, 5], [3, 4, 0], [3, 4])


def test_a_source_is_loaded_with_its_constants_and_orientation(tmp_path):
    contents = small_contents()
    folder = write(tmp_path, contents)
    data = load_source(small_source(contents), folder)
    images = np.frombuffer(contents["small-test-images"], np.uint8, offset=16).reshape(-1, 1, 28, 28)
    assert np.allclose(data.test_inputs.numpy(), (images / 255 - 0.5) / 0.25, atol=1e-6)
    assert data.test_labels.tolist() == list(range(10))
    assert data.held_out == "Small test set (10 images)"
    assert (SOURCES["emnist"].transposed, SOURCES["mnist"].transposed) == (True, False)
    turned = load_source(small_source(contents, transposed=True), folder)
    assert torch.equal(turned.train_inputs, data.train_inputs.transpose(2, 3))
    assert turned.train_inputs.is_contiguous()
    for labels, words in (
        (np.zeros(19), r"\(19, 10\) labels; expected \(20, 10\)"),
        (np.full(20, 10), "10 to 10"),
    ):
        contents["small-train-labels"] = encode_idx(labels.astype(np.uint8))
        with pytest.raises(ValueError, match=words):
            load_source(small_source(contents), write(tmp_path, contents))


def test_a_users_pair_is_split_four_to_one_by_class_and_an_own_split_is_kept():
    inputs = np.arange(100.0).reshape(50, 2)
    data, again = (given_dataset("mine", lambda: (inputs, np.repeat(np.arange(5), 10))) for _ in range(2))
    assert data.train_labels.bincount().tolist() == [8] * 5
    assert data.test_labels.bincount().tolist() == [2] * 5
    assert torch.equal(data.test_inputs, again.test_inputs)
    rows = torch.cat([data.train_inputs, data.test_inputs])[:, 0]
    assert sorted(rows.tolist()) == list(range(0, 100, 2))
    # Each input kept its label: row i is (2i, 2i + 1) and has label i // 10.
    assert torch.equal(data.test_inputs[:, 0].long() // 2 // 10, data.test_labels)
    assert data.held_out == "10 held-out examples of mine"
    assert given_dataset("mine", data) is data
    own = given_dataset("mine", ((torch.ones(3, 3), torch.arange(3)), (np.zeros((2, 3)), np.array([3, 0]))))
    assert (own.train_labels.tolist(), own.test_labels.tolist(), own.classes) == ([0, 1, 2], [3, 0], 4)
    assert own.held_out == "test part of mine (2 examples)"


def test_clients_keep_a_fifth_of_their_own_for_the_test():
    owners = np.repeat(["x", "y", "z"], [10, 10, 4])
    data = given_dataset("mine", (np.arange(48.0).reshape(24, 2), np.arange(24) % 2, owners))
    held = sorted(set(np.arange(0, 48.0, 2)) - set(data.train_inputs[:, 0].tolist()))
    assert [sum(place in range(20 * i, 20 * i + 20) for place in held) for i in range(3)] == [2, 2, 0]
    assert np.bincount(data.owners).tolist() == [8, 8, 4]
    for each in (1, 4):  # of clients with few examples, a fifth of all
        owners = np.repeat(np.arange(20), each)
        data = given_dataset("mine", (np.ones((len(owners), 2)), np.arange(len(owners)) % 2, owners))
        assert len(data.test_labels) == len(owners) // 5
        assert set(data.owners) == set(range(len(set(data.owners))))


def test_a_share_of_the_training_part_or_fewer_tests_can_be_held_out():
    inputs = torch.stack([torch.arange(60), torch.ones(60)], dim=1).float()
    whole = given_dataset("numbers", ((inputs, torch.arange(60) % 2), (inputs[:10], torch.arange(10) % 2)))
    smaller = hold_out(whole, 0.25, seed=1)
    parts = [smaller.train_inputs[:, 0].tolist(), smaller.test_inputs[:, 0].tolist()]
    assert [len(part) for part in parts] == [45, 15]
    assert sorted(parts[0] + parts[1]) == whole.train_inputs[:, 0].tolist()
    assert smaller.held_out == "15 training images of numbers, held out"
    assert hold_out(whole, 0.25, seed=2).test_inputs.tolist() != smaller.test_inputs.tolist()
    few = first_tests(whole, 4)
    assert (len(few.test_labels), len(few.train_labels)) == (4, 60)
    assert few.held_out == "the first 4 of: test part of numbers (10 examples)"
    assert first_tests(whole, 10) is whole


# ---------------------------------------------------------------- plays

PLAY = """THE LIGHTHOUSE

PERSONS REPRESENTED.
Ada, a keeper.

SCENE I. A rock in the sea.

[Enter ADA, with a lamp,
and BEN.]

ADA.
Who's there? Stand.
Nay, answer me.

BEN.
A friend of the light.

[A bell.]

It rings for us. [Aside.] Or not.

SCENE II. The same.

This line belongs to nobody.

Ben.
The sea is dark.
ADA. And deep.

MRS. GREY.
Come in.
"""


def test_a_speech_goes_on_after_a_stage_direction_and_ends_with_the_scene(shakespeare):
    assert shakespeare.speeches(PLAY) == {
        "Ada": "Who's there? Stand.\nNay, answer me.\nAnd deep.\n",
        "Ben": "A friend of the light.\nIt rings for us.  Or not.\nThe sea is dark.\n",
        "Mrs. Grey": "Come in.\n",
    }
    colons = "First Citizen:\nHear me.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\nYou are resolved.\n"
    said = {"First Citizen": "Hear me.\nYou are resolved.\n", "All": "Speak, speak.\n"}
    assert shakespeare.speeches(colons) == said


def test_every_speaker_is_a_client_whose_last_fifth_is_held_out(shakespeare, tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_DATA", str(tmp_path))
    (tmp_path / "input.txt").write_text(
        "ACT I.\n\nFIRST.\n" + "a" * 900 + "\n\nSECOND.\n" + "b" * 1700 + "\n"
    )
    data = load_dataset("tools.shakespeare:plays")
    assert (data.in_shape, data.classes, len(data.train_labels), len(data.test_labels)) == ((80,), 65, 26, 6)
    assert data.train_labels[:, :-1].tolist() == data.train_inputs[:, 1:].tolist()
    letters = np.array(list(shakespeare.LETTERS))[data.test_inputs.numpy()]
    assert [*letters[:, 0]] == ["a"] * 2 + ["b"] * 4
    parts = partition(data.train_labels.numpy(), 2, "natural", 0, data.owners)
    assert [len(part) for part in parts] == [9, 17]
    fewer = hold_out(data, 0.9, seed=1)  # nobody is left without an example
    assert set(fewer.owners.tolist()) == {0, 1}
    assert len(fewer.train_labels) + len(fewer.test_labels) == 26
