"""Files that are replaced whole; locks and crashes are tried with the ledger."""

import os

import pytest

from sqsgd._internal.files import prepared, put, write_atomically


def mode(path):
    return path.stat().st_mode & 0o777


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_secrets_are_their_owners_alone_and_other_files_follow_the_mask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"for all")
        put(prepared(tmp_path / "secret", b"mine"), tmp_path / "secret")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "file"), mode(tmp_path / "secret")) == (0o640, 0o600)


def test_what_a_crash_or_somebody_left_is_not_written_through(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / "file.part").symlink_to(other)
    write_atomically(tmp_path / "file", b"new")
    assert (other.read_bytes(), (tmp_path / "file").read_bytes()) == (b"precious", b"new")


def test_what_does_not_fit_on_the_disk_is_named(tmp_path, monkeypatch):
    """The system's error has no file name: it is of a descriptor."""
    (tmp_path / "file").write_bytes(b"old")
    full = os.open("/dev/full", os.O_WRONLY)
    usual = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda _descriptor, content, at: usual(full, content, at))
    with pytest.raises(OSError, match="No space left on device") as error:
        write_atomically(tmp_path / "file", b"new")
    os.close(full)
    assert error.value.filename == str(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_where_it_cannot_be_put_nothing_is_left(tmp_path):
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"new")
    assert not (tmp_path / "folder.part").exists()
