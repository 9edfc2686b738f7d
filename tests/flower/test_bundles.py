"""Bundles that would fill a node's memory or disk, or lead out of the app's folder, are refused unpacked."""

import io
import stat
import struct
import tracemalloc
import warnings
import zipfile

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")

from app_runs import archive, write_app

from sqsgd.flower import app_folder, bundles
from sqsgd.flower.bundles import BadBundle, check_bundle


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of pathspec
def test_what_flower_builds_is_good(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    check_bundle(build_fab_from_disk(app_folder()))
    check_bundle(build_fab_from_disk(write_app(tmp_path / "plain")))


def test_a_bomb_is_refused_in_little_memory():
    """Whether it states its size or not."""
    bomb = archive({"pyproject.toml": bytes(64 * 2**20)})
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(BadBundle, match="state more than"):
            check_bundle(bomb)
        with pytest.raises(BadBundle, match="not a sound archive"):
            check_bundle(lying(bomb, 1000))
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def lying(content, size):
    """The same archive, whose only file states another size, in both of its headers."""
    changed = bytearray(content)
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = changed.index(mark) + place
        changed[at : at + 4] = struct.pack("<I", size)
    return bytes(changed)


@pytest.mark.parametrize("size", [0, 1000, 5001, 2**31])
def test_stated_sizes_are_checked(size):
    content = archive({"a.py": bytes(5000)})
    check_bundle(lying(content, 5000))
    with pytest.raises(BadBundle):
        check_bundle(lying(content, size))


def test_files_that_share_their_content_are_counted_each():
    """A small archive whose names all stand for one content, stored once."""
    single = archive({"00.py": bytes(2**20)})
    begin, end = single.index(b"PK\x01\x02"), single.index(b"PK\x05\x06")
    entry = single[begin:end]
    many = b"".join(entry.replace(b"00.py", b"%02d.py" % n) for n in range(40))
    count = struct.pack("<HHII", 40, 40, len(many), begin)
    shared = single[:begin] + many + single[end : end + 8] + count + b"\0\0"
    with zipfile.ZipFile(io.BytesIO(shared)) as bundle:
        assert len(bundle.infolist()) == 40
    assert len(shared) < 10_000
    with pytest.raises(BadBundle, match="state more than"):
        check_bundle(shared)


def test_many_files_are_refused_before_they_are_listed(monkeypatch):
    check_bundle(archive({f"{n}.py": "" for n in range(2000)}))
    content = archive({f"{n}.py": "" for n in range(2001)})
    monkeypatch.setattr(bundles.zipfile, "ZipFile", None)
    with pytest.raises(BadBundle, match="more than 2000 files"):
        check_bundle(content)
    with pytest.raises(BadBundle, match="at most 10485760"):
        check_bundle(bytes(bundles.MOST_BYTES + 1))


@pytest.mark.parametrize(
    "name", ["../a.py", "x/../../a.py", "/etc/a.py", "x\\..\\a.py", "C:a.py", "a.py\0.txt", "x/..", ".", ""]
)
def test_names_that_lead_elsewhere_are_refused(name):
    file = zipfile.ZipInfo("x")
    file.filename = name
    with pytest.raises(BadBundle, match="may lead out"):
        check_bundle(archive({file: "text"}))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(kind):
    file = zipfile.ZipInfo("a.py")
    file.external_attr = (kind | 0o777) << 16
    with pytest.raises(BadBundle, match="neither a file nor a folder"):
        check_bundle(archive({file: "/etc/passwd"}))


def test_unusual_archives_are_refused():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as bundle:
        bundle.writestr("a.py", "text")
    with pytest.raises(BadBundle, match="compressed in an unusual way"):
        check_bundle(content.getvalue())
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bundle.writestr("a.py", "one")
        bundle.writestr("a.py", "two")
    with pytest.raises(BadBundle, match="two files named"):
        check_bundle(content.getvalue())


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18), bytes(10_000)])
def test_what_is_no_archive_is_refused(content):
    if content.startswith(b"PK"):
        check_bundle(content)  # an empty one: nothing to unpack, and Flower refuses it
    else:
        with pytest.raises(BadBundle, match="not a sound archive"):
            check_bundle(content)


def test_damaged_archives_are_refused_in_words():
    content = archive({"a.py": b"some text that can be compressed, compressed" * 50})
    for at in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        try:
            check_bundle(bytes(damaged))
        except BadBundle:
            continue
