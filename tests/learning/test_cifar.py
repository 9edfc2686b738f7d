"""CIFAR-10: both versions of its files give the same images, and nothing else is accepted."""

import hashlib
import pickle

import numpy as np
import pytest

from sqsgd.learning.cifar import BATCHES, Batch, read_cifar10
from sqsgd.learning.datasets import load_dataset

PIXELS = np.random.default_rng(3).integers(0, 256, (2, 4, 3072), np.uint8)
LABELS = [[3, 0, 9, 1], [7, 7, 2, 5]]


def binary(part):
    return np.hstack([np.asarray(LABELS[part], np.uint8)[:, None], PIXELS[part]]).tobytes()


@pytest.fixture
def small():
    names = ("data_batch_1", "test_batch")
    return [Batch(name=n, sha256=hashlib.sha256(binary(i)).hexdigest()) for i, n in enumerate(names)]


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_the_binary_version(tmp_path, small, folder):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for i, batch in enumerate(small):
        (tmp_path / folder / f"{batch.name}.bin").write_bytes(binary(i))
    images, labels = read_cifar10(tmp_path, small)
    assert labels.tolist() == LABELS[0] + LABELS[1]
    np.testing.assert_array_equal(
        images, PIXELS.reshape(8, 3, 32, 32)
    )  # red, green and blue planes, row by row


def test_the_python_version_has_the_same_content(tmp_path, small):
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for i, batch in enumerate(small):
        held = {b"data": PIXELS[i], b"labels": LABELS[i], b"batch_label": b"a batch"}
        (place / batch.name).write_bytes(pickle.dumps(held, protocol=2))
    images, labels = read_cifar10(tmp_path, small)
    assert labels.tolist() == LABELS[0] + LABELS[1]
    np.testing.assert_array_equal(images, PIXELS.reshape(8, 3, 32, 32))


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the code of a pickle was run')",))


def test_code_in_a_pickle_is_not_run(tmp_path, small):
    for batch in small:
        (tmp_path / batch.name).write_bytes(pickle.dumps({b"data": Harmful()}, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_1 cannot be read \(it names .*exec\)"):
        read_cifar10(tmp_path, small)


class Addresses:
    """An array of Python objects whose addresses are in the file."""

    def __reduce__(self):
        return (np.ndarray, ((4,), np.dtype("O"), b"A" * 32))


@pytest.mark.parametrize("labels", [Addresses(), np.array([None, 1], object), np.arange(3.0)])
def test_no_array_but_one_of_bytes_is_made(tmp_path, small, labels):
    """Looking into the first would crash the process."""
    for batch in small:
        (tmp_path / batch.name).write_bytes(pickle.dumps({b"data": labels, b"labels": labels}, protocol=2))
    with pytest.raises(ValueError, match="data_batch_1 cannot be read"):
        read_cifar10(tmp_path, small)


def test_other_content_is_refused(tmp_path, small):
    for batch in small:
        (tmp_path / f"{batch.name}.bin").write_bytes(binary(1))
    with pytest.raises(ValueError, match="is not the published data_batch_1: its checksum differs"):
        read_cifar10(tmp_path, small)


def test_missing_files_are_named_with_the_remedy(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"data_batch_1, .*data_batch_5 .*tools/cifar10_files.py"):
        load_dataset("cifar10", tmp_path)


def test_the_published_files_hold_60000_images_of_ten_classes():
    try:
        data = load_dataset("cifar10")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert data.train_inputs.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert (float(data.train_inputs.min()), float(data.train_inputs.max())) == (-1, 1)
    assert len(BATCHES) == 6
