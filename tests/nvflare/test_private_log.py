"""The owner's log: the file is written, and nothing else learns of it."""

import logging

import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")

from sqsgd.nvflare import private_log
from sqsgd.nvflare.private_log import MAX_BYTES


def failed(folder):
    try:
        raise ValueError("row 17")
    except ValueError:
        private_log.private_log(folder).exception("the app failed")


def test_nothing_reaches_other_handlers(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    failed(tmp_path / "state")
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    path = tmp_path / "state/log.txt"
    assert "the app failed" in path.read_text()
    assert "ValueError: row 17" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_no_failure_is_told(tmp_path, capfd):
    (tmp_path / "file").touch()
    failed(tmp_path / "file")  # not a folder
    assert capfd.readouterr() == ("", "")


def test_a_long_log_is_put_aside(tmp_path):
    (tmp_path / "log.txt").write_bytes(b"x" * (MAX_BYTES + 1))
    failed(tmp_path)
    assert (tmp_path / "log.1.txt").stat().st_size == MAX_BYTES + 1
    assert 0 < (tmp_path / "log.txt").stat().st_size < 10_000
