"""Files that are replaced whole, and secrets; locks and crashes are tried with the ledger."""

import os

import pytest

from sqsgd._internal.files import (
    forget_secret,
    new_secret,
    prepared,
    put,
    read_secret,
    replace_secret,
    write_atomically,
)


def mode(path):
    return path.stat().st_mode & 0o777


def test_secrets_are_their_owners_alone_and_other_files_follow_the_mask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"for all")
        put(prepared(tmp_path / "secret", b"mine"), tmp_path / "secret")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "file"), mode(tmp_path / "secret")) == (0o640, 0o600)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_a_crash_or_somebody_left_is_not_written_through(tmp_path, link):
    """Whoever may write into the folder could else have secrets and ledgers write over another file."""
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    link(other, tmp_path / "file.part")
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


# ---------------------------------------------------------------- secrets


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_PRIVATE", str(tmp_path / "private"))
    return tmp_path / "private"


def test_only_the_owner_can_read_it(folder):
    before = os.umask(0)
    try:
        name = new_secret(b"hidden")
    finally:
        os.umask(before)
    assert (mode(folder), mode(folder / name)) == (0o700, 0o600)
    assert read_secret(name) == b"hidden"
    replace_secret(name, b"other")
    assert (mode(folder / name), read_secret(name)) == (0o600, b"other")
    forget_secret(name)
    forget_secret(name)
    with pytest.raises(FileNotFoundError):
        read_secret(name)


def test_it_does_not_go_where_results_go(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_PRIVATE", str(tmp_path / "run" / "private"))
    with pytest.raises(ValueError, match="where results go"):
        new_secret(b"hidden", apart_from=tmp_path / "run")
    assert list((tmp_path / "run" / "private").iterdir()) == []


def test_a_folder_or_file_that_others_can_read_is_refused(folder):
    name = new_secret(b"hidden")
    (folder / name).chmod(0o640)
    with pytest.raises(PermissionError, match="not secret any more"):
        read_secret(name)
    (folder / name).chmod(0o600)
    folder.chmod(0o750)
    for use in (lambda: new_secret(b""), lambda: read_secret(name)):
        with pytest.raises(PermissionError, match="chmod 700"):
            use()


@pytest.mark.parametrize("name", ["", "../run", "x" * 32, "a" * 31, "a" * 33])
def test_names_are_not_paths(name):
    for use in (read_secret, forget_secret, lambda name: replace_secret(name, b"")):
        with pytest.raises(ValueError, match="not the name of a secret"):
            use(name)
