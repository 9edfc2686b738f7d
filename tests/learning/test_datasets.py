"""Loading: shapes, constants, orientation, splits, and errors for a user's own data."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_data import SIZES, encode_idx, small_contents, small_source, zipped

from sqsgd.learning.dataset_sources import SOURCES
from sqsgd.learning.datasets import Dataset, load_dataset, load_source

SHARED = Path(__file__).parents[2].parent / "shared" / "data"

USER_CODE = """
import numpy as np
import torch

def pair():
    return np.arange(100.0).reshape(50, 2), np.repeat(np.arange(5), 10)

def parts():
    return (torch.ones(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])), (np.zeros((2, 3)), np.array([3, 0]))

def pixels():
    return np.full((10, 1, 2, 2), 255, np.uint8), np.arange(10) % 2

def words():
    return np.arange(20, dtype=np.int32).reshape(10, 2), np.arange(10) % 2

def read_only():
    inputs = np.ones((10, 2))[::-1]
    inputs.flags.writeable = False
    return [inputs, np.arange(10) % 2]

def nothing():
    return None

def three():
    return np.ones((5, 2)), np.zeros(5, int), 1

def lists():
    return [[1.0]] * 5, [0] * 5

def text():
    return np.array([["a"]] * 5), np.zeros(5, int)

def lengths():
    return np.ones((5, 2)), np.zeros(4, int)

def negative():
    return np.ones((5, 2)), np.array([0, 1, -1, 0, 1])

def not_finite():
    return np.full((5, 2), np.nan), np.zeros(5, int)

def too_few():
    return np.ones((4, 2)), np.zeros(4, int)

def no_examples():
    return np.ones((0, 2)), np.zeros(0, int)

def shapes():
    return (np.ones((5, 2)), np.zeros(5, int)), (np.ones((5, 3)), np.zeros(5, int))

def complex_numbers():
    return np.ones((5, 2), complex), np.zeros(5, int)
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "data_of_a_user.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "data_of_a_user", raising=False)
    return "data_of_a_user"


@pytest.fixture(scope="module")
def mnist5k() -> Dataset:
    return load_dataset("mnist5k")


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(zipped(content))
    return folder


def test_mnist5k_is_split_evenly_over_the_digits(mnist5k: Dataset) -> None:
    assert mnist5k.train_inputs.shape == (4000, 1, 28, 28)
    assert mnist5k.test_inputs.shape == (1000, 1, 28, 28)
    assert mnist5k.in_shape == (1, 28, 28)
    assert mnist5k.train_inputs.dtype == torch.float32
    assert mnist5k.train_labels.dtype == torch.int64
    assert mnist5k.train_labels.bincount().tolist() == [400] * 10
    assert mnist5k.test_labels.bincount().tolist() == [100] * 10
    assert mnist5k.classes == 10


def test_no_image_of_mnist5k_is_on_both_sides(mnist5k: Dataset) -> None:
    train = {image.numpy().tobytes() for image in mnist5k.train_inputs}
    test = {image.numpy().tobytes() for image in mnist5k.test_inputs}
    assert len(train) == 4000
    assert len(test) == 1000
    assert not train & test


def test_mnist5k_does_not_call_its_held_out_part_the_test_set(mnist5k: Dataset) -> None:
    assert mnist5k.held_out == "1,000 held-out images of MNIST's training set"


def test_pixels_are_scaled_then_normalised_with_the_published_constants(mnist5k: Dataset) -> None:
    assert mnist5k.train_inputs.min().item() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-6)
    assert mnist5k.train_inputs.max().item() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-6)


def test_mnist5k_images_are_the_right_way_up_and_match_their_labels(mnist5k: Dataset) -> None:
    # A one is a vertical stroke: its ink spreads over many rows and few columns. A transposed or shifted
    # table would not say so.
    ones = (mnist5k.test_inputs[mnist5k.test_labels == 1] > 0).squeeze(1)
    rows, columns = ones.any(dim=2).sum(dim=1).float().mean(), ones.any(dim=1).sum(dim=1).float().mean()
    assert rows > 1.8 * columns


@pytest.mark.parametrize(("name", "title"), [("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST")])
def test_the_public_sets_load_and_have_the_published_moments(name: str, title: str) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here: run sqsgd data fetch {name}")
    data = load_dataset(name, SHARED)
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    assert data.train_inputs.is_contiguous()
    assert data.held_out == f"{title} test set (10,000 images)"
    assert abs(data.train_inputs.mean().item()) < 1e-3
    assert abs(data.train_inputs.std().item() - 1) < 1e-3


def test_mnist5k_is_a_part_of_mnists_training_set(mnist5k: Dataset) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not here: run sqsgd data fetch mnist")
    mnist = load_dataset("mnist", SHARED)
    training, test = (
        {(image.tobytes(), label) for image, label in zip(inputs.numpy(), labels.tolist(), strict=True)}
        for inputs, labels in (
            (mnist.train_inputs, mnist.train_labels),
            (mnist.test_inputs, mnist.test_labels),
        )
    )
    for inputs, labels in (
        (mnist5k.train_inputs, mnist5k.train_labels),
        (mnist5k.test_inputs, mnist5k.test_labels),
    ):
        own = {(image.tobytes(), label) for image, label in zip(inputs.numpy(), labels.tolist(), strict=True)}
        assert own <= training
        assert not own & test


def test_a_source_is_loaded_with_its_constants(tmp_path: Path) -> None:
    contents = small_contents()
    data = load_source(small_source(contents), write(tmp_path, contents))
    images = np.frombuffer(contents["small-test-images"], np.uint8, offset=16).reshape(-1, 1, 28, 28)
    assert np.allclose(data.test_inputs.numpy(), (images / 255 - 0.5) / 0.25, atol=1e-6)
    assert data.test_labels.tolist() == list(range(10))
    assert (len(data.train_inputs), len(data.test_inputs)) == SIZES
    assert data.held_out == "Small test set (10 images)"


def test_emnist_is_declared_transposed_and_its_loader_turns_the_images(tmp_path: Path) -> None:
    assert SOURCES["emnist"].transposed
    assert not SOURCES["mnist"].transposed
    contents = small_contents()
    write(tmp_path, contents)
    upright = load_source(small_source(contents, known=False), tmp_path)
    turned = load_source(small_source(contents, known=False, transposed=True), tmp_path)
    assert torch.equal(turned.train_inputs, upright.train_inputs.transpose(2, 3))
    assert turned.train_inputs.is_contiguous()


def test_files_of_the_wrong_length_are_refused_even_if_unverified(tmp_path: Path) -> None:
    contents = small_contents()
    contents["small-train-labels"] = encode_idx(np.zeros(19, np.uint8))
    with pytest.raises(ValueError, match=r"contains \(20, 19, 10, 10\) items; expected \(20, 20, 10, 10\)"):
        load_source(small_source(contents), write(tmp_path, contents))
    contents["small-train-labels"] = encode_idx(np.full(20, 10, np.uint8))
    with pytest.raises(ValueError, match="training labels run from 10 to 10; expected 0 to 9"):
        load_source(small_source(contents), write(tmp_path, contents))


def test_unknown_and_absent_data_sets_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'minst' is unknown; did you mean 'mnist'\? \(choose mnist5k, mnist, .* package"
    ):
        load_dataset("minst")
    with pytest.raises(FileNotFoundError, match=r"'emnist'.*emnist-mnist-train-images.*data fetch emnist"):
        load_dataset("emnist", tmp_path)


def test_a_users_pair_is_split_four_to_one_by_class(user_code: str) -> None:
    data = load_dataset(f"{user_code}:pair")
    again = load_dataset(f"{user_code}:pair")
    assert data.train_inputs.dtype == torch.float32
    assert data.train_labels.bincount().tolist() == [8] * 5
    assert data.test_labels.bincount().tolist() == [2] * 5
    assert torch.equal(data.test_inputs, again.test_inputs)
    rows = torch.cat([data.train_inputs, data.test_inputs])[:, 0]
    assert sorted(rows.tolist()) == list(range(0, 100, 2))
    # Each input kept its label: row i is (2i, 2i + 1) and has label i // 10.
    assert torch.equal(data.test_inputs[:, 0].long() // 2 // 10, data.test_labels)
    assert data.held_out == f"10 held-out examples of {user_code}:pair"


def test_a_users_own_split_is_kept(user_code: str) -> None:
    data = load_dataset(f"{user_code}:parts")
    assert (len(data.train_inputs), len(data.test_inputs), data.classes) == (6, 2, 4)
    assert data.test_labels.tolist() == [3, 0]
    assert data.held_out == f"test part of {user_code}:parts (2 examples)"


def test_pixels_words_and_read_only_arrays(user_code: str) -> None:
    assert load_dataset(f"{user_code}:pixels").train_inputs.unique().tolist() == [1.0]
    assert load_dataset(f"{user_code}:words").train_inputs.dtype == torch.int64
    assert load_dataset(f"{user_code}:read_only").train_inputs.shape == (8, 2)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("absent", "has no 'absent'"),
        ("nothing", r"returned a NoneType; expected \(inputs, labels\)"),
        ("three", r"clients have shape \(\); expected one for each of the 5 examples"),
        ("lists", "inputs are a list; expected an array or a tensor"),
        ("text", "inputs are of type <U1; expected numbers"),
        ("lengths", r"inputs have shape \(5, 2\) and labels \(4,\)"),
        ("negative", "labels run from -1 to 1; expected 0 to 1"),
        ("not_finite", "inputs contain NaN or infinity"),
        ("too_few", "has 4 examples; a split needs at least 5"),
        ("no_examples", "with count at least 1"),
        ("shapes", r"training inputs have shape \(2,\), test inputs \(3,\)"),
        ("complex_numbers", "inputs are torch.complex128; expected real numbers"),
    ],
)
def test_errors_name_what_is_wrong_with_a_users_data(user_code: str, factory: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"dataset '{user_code}:{factory}'.*{message}"):
        load_dataset(f"{user_code}:{factory}")
