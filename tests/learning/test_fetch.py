"""Downloads from a local server: resumed, verified, and never incomplete under the final name."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from small_data import small_contents, small_source, zipped

from sqsgd.learning.dataset_sources import SOURCES, Archive
from sqsgd.learning.datasets import load_source
from sqsgd.learning.fetch import fetch

FIRST = "small-train-images.gz"


class Server:
    """Serves ``files``; ``cut`` breaks a file's connection after that many bytes; ``ranges`` obeys Range."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.cut, self.ranges = dict(files), dict[str, int](), True
        self.requests: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name, wanted = self.path.lstrip("/"), self.headers["Range"]
                server.requests.append((name, wanted))
                if name not in server.files:
                    self.send_error(404)
                    return
                body, start = server.files[name], 0
                if wanted and server.ranges:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                    if start >= len(body):
                        self.send_response(416)
                        self.send_header("Content-Length", "0")
                        self.end_headers()
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                stop = server.cut.get(name, len(body))
                self.wfile.write(body[start : max(start, stop)])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    files = small_contents()
    monkeypatch.setitem(SOURCES, "small", small_source(files))
    return files


@pytest.fixture
def server(contents: dict[str, bytes]) -> Iterator[Server]:
    running = Server({f"{name}.gz": zipped(content) for name, content in contents.items()})
    yield running
    running.stop()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_fetched_set_loads_and_is_not_fetched_twice(tmp_path: Path, server: Server) -> None:
    folder = fetch("small", tmp_path, mirrors=[server.url])
    assert folder == tmp_path / "small"
    assert names(tmp_path) == set(server.files)
    assert len(load_source(SOURCES["small"], folder).train_labels) == 20
    asked = len(server.requests)
    fetch("small", tmp_path, mirrors=[server.url])
    assert len(server.requests) == asked == 4


def test_an_interrupted_download_is_resumed_where_it_stopped(tmp_path: Path, server: Server) -> None:
    server.cut[FIRST] = 1000
    total = len(server.files[FIRST])
    with pytest.raises(ConnectionError, match=f"ended after 1,000 of {total:,} bytes.*run the command again"):
        fetch("small", tmp_path, mirrors=[server.url])
    assert names(tmp_path) == {f"{FIRST}.part"}
    assert (tmp_path / "small" / f"{FIRST}.part").read_bytes() == server.files[FIRST][:1000]
    server.cut.clear()
    fetch("small", tmp_path, mirrors=[server.url])
    assert server.requests[1] == (FIRST, "bytes=1000-")
    assert names(tmp_path) == set(server.files)
    assert (tmp_path / "small" / FIRST).read_bytes() == server.files[FIRST]


def test_a_server_that_ignores_ranges_makes_it_start_again(tmp_path: Path, server: Server) -> None:
    server.ranges = False
    part = tmp_path / "small" / f"{FIRST}.part"
    part.parent.mkdir()
    part.write_bytes(server.files[FIRST][:1000])
    fetch("small", tmp_path, mirrors=[server.url])
    assert [name for name, _ in server.requests].count(FIRST) == 1
    assert (part.parent / FIRST).read_bytes() == server.files[FIRST]


def test_a_part_that_is_already_whole_needs_no_more_bytes(tmp_path: Path, server: Server) -> None:
    part = tmp_path / "small" / f"{FIRST}.part"
    part.parent.mkdir()
    part.write_bytes(server.files[FIRST])
    fetch("small", tmp_path, mirrors=[server.url])
    assert [name for name, _ in server.requests].count(FIRST) == 1
    assert names(tmp_path) == set(server.files)


@pytest.mark.parametrize("extra", [b"", b"too long"])
def test_a_damaged_part_is_discarded_and_fetched_again(tmp_path: Path, server: Server, extra: bytes) -> None:
    part = tmp_path / "small" / f"{FIRST}.part"
    part.parent.mkdir()
    part.write_bytes(b"?" * 1000 if not extra else server.files[FIRST] + extra)
    fetch("small", tmp_path, mirrors=[server.url])
    assert [wanted for name, wanted in server.requests if name == FIRST][1] is None
    assert (part.parent / FIRST).read_bytes() == server.files[FIRST]


def test_wrong_content_is_refused_and_removed(tmp_path: Path, server: Server) -> None:
    server.files[FIRST] = zipped(b"something else")
    with pytest.raises(ValueError, match=f"'small': could not fetch {FIRST}.*checksum differs.*was removed"):
        fetch("small", tmp_path, mirrors=[server.url])
    assert names(tmp_path) == set()


def test_a_wrong_file_under_the_final_name_is_replaced(tmp_path: Path, server: Server) -> None:
    path = tmp_path / "small" / FIRST
    path.parent.mkdir()
    path.write_bytes(b"half a fi")
    fetch("small", tmp_path, mirrors=[server.url])
    assert path.read_bytes() == server.files[FIRST]


def test_the_next_mirror_resumes_an_interrupted_download(tmp_path: Path, server: Server) -> None:
    broken = Server(server.files)
    try:
        broken.cut[FIRST] = 700
        del broken.files["small-test-labels.gz"]
        fetch("small", tmp_path, mirrors=[broken.url, server.url])
    finally:
        broken.stop()
    assert server.requests == [(FIRST, "bytes=700-"), ("small-test-labels.gz", None)]
    assert names(tmp_path) == set(server.files)


def test_when_no_server_answers_every_address_is_named(tmp_path: Path, server: Server) -> None:
    dead = Server({})
    dead.stop()
    with pytest.raises(ConnectionError) as caught:
        fetch("small", tmp_path, mirrors=[dead.url, server.url + "nowhere"], timeout=5)
    message = str(caught.value)
    assert f"dataset 'small': could not fetch {FIRST}" in message
    assert f"{dead.url}{FIRST}: " in message
    assert "Connection refused" in message
    assert "404" in message
    assert "check the network connection" in message
    assert names(tmp_path) == set()


def packed(contents: dict[str, bytes], *, without: str = "") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gzip/small-other-images.gz", b"another split, not wanted")
        for name, content in contents.items():
            if name != without:
                archive.writestr(f"gzip/{name}.gz", zipped(content))
    return stream.getvalue()


def archived(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], data: bytes, url: str) -> None:
    archive = Archive(urls=(url,), md5=hashlib.md5(data, usedforsecurity=False).hexdigest())
    monkeypatch.setitem(SOURCES, "small", small_source(contents, known=False, archive=archive))


def test_emnist_comes_as_four_members_of_one_zip(
    tmp_path: Path, server: Server, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SOURCES["emnist"].archive is not None
    data = packed(contents)
    server.files = {"gzip.zip": data}
    server.cut["gzip.zip"] = 2000
    archived(monkeypatch, contents, data, server.url + "gzip.zip")
    with pytest.raises(ConnectionError, match=r"could not fetch gzip\.zip"):
        fetch("small", tmp_path)
    assert names(tmp_path) == {"gzip.zip.part"}
    server.cut.clear()
    folder = fetch("small", tmp_path)
    assert server.requests == [("gzip.zip", None), ("gzip.zip", "bytes=2000-")]
    assert names(tmp_path) == {f"{name}.gz" for name in contents}
    assert len(load_source(SOURCES["small"], folder).test_labels) == 10


def test_an_archive_put_there_by_hand_is_used_without_a_network(
    tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = packed(contents)
    archived(monkeypatch, contents, data, "http://127.0.0.1:9/gzip.zip")
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "gzip.zip").write_bytes(data)
    fetch("small", tmp_path)
    assert names(tmp_path) == {f"{name}.gz" for name in contents}


def test_a_wrong_archive_and_a_wrong_member_are_refused(
    tmp_path: Path, server: Server, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = packed(contents)
    archived(monkeypatch, contents, data, server.url + "gzip.zip")
    server.files = {"gzip.zip": data[:-1] + b"!"}
    with pytest.raises(ValueError, match=r"'small': could not fetch gzip\.zip.*md5"):
        fetch("small", tmp_path)
    assert names(tmp_path) == set()
    for wrong, reason in (
        (packed(contents, without="small-train-images"), "it is not inside"),
        (packed(contents | {"small-train-images": b"other"}), "checksum differs"),
        (b"not a zip at all", "not a zip file"),
    ):
        archived(monkeypatch, contents, wrong, server.url + "gzip.zip")
        server.files = {"gzip.zip": wrong}
        with pytest.raises(ValueError, match=f"could not extract {FIRST} from .*{reason}"):
            fetch("small", tmp_path)
        assert names(tmp_path) == {"gzip.zip"}
        (tmp_path / "small" / "gzip.zip").unlink()


def test_what_cannot_be_fetched_says_so(tmp_path: Path) -> None:
    assert (fetch("mnist5k") / "mnist_5k.csv.gz").is_file()
    with pytest.raises(ValueError, match=r"'cifar' cannot be fetched \(choose mnist, fashion-mnist, "):
        fetch("cifar", tmp_path)
    with pytest.raises(ValueError, match="mirror 'file:///etc/' must begin with http"):
        fetch("mnist", tmp_path, mirrors=["file:///etc/"])
    assert names(tmp_path) == set()
