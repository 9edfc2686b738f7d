"""Secrets: for their owner alone, apart from results, and whole after a crash."""

import os
import stat
from pathlib import Path

import pytest

from sqsgd._internal import files
from sqsgd._internal.files import forget_secret, new_secret, read_secret, replace_secret, secret_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_PRIVATE", str(tmp_path / "private"))
    return tmp_path / "private"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


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
    with pytest.raises(PermissionError, match="no secret any more"):
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


def test_without_a_choice_it_is_in_the_users_state_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SQSGD_PRIVATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert secret_folder() == tmp_path / "state" / "sqsgd" / "private"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert secret_folder() == tmp_path / "home" / ".local" / "state" / "sqsgd" / "private"


def test_a_crash_leaves_the_old_content(folder, monkeypatch):
    name = new_secret(b"old")

    def dying(*_):
        raise SystemExit

    monkeypatch.setattr(files, "put", dying)
    with pytest.raises(SystemExit):
        replace_secret(name, b"new")
    assert read_secret(name) == b"old"
