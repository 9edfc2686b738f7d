"""SQLite: on the disk before a call returns, and never writing where nobody reads."""

import subprocess
import sys

import pytest
from devices import make

from sqsgd.federation.collect.database import FILE, Conflict, DatabaseFailed, new_database, open_database


@pytest.fixture
def folder(tmp_path):
    make(tmp_path / "study")
    return tmp_path / "study"


def test_commits_are_synced(folder):
    database = open_database(folder)
    assert database.read("PRAGMA journal_mode") == [("wal",)]
    assert database.read("PRAGMA synchronous") == [(2,)]  # FULL
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    database.close()


def test_a_transaction_is_whole_or_nothing(folder):
    database = open_database(folder)
    with pytest.raises(DatabaseFailed, match="syntax"), database.transaction():  # noqa: PT012
        database.write("DELETE FROM slots")
        database.write("nonsense")
    assert len(database.read("SELECT * FROM slots")) == 4
    with pytest.raises(Conflict), database.transaction():
        database.write("INSERT INTO invitations VALUES ('a'), ('a')")
    assert database.read("SELECT * FROM invitations") == []
    database.close()


def test_a_deleted_or_replaced_file_takes_no_more_reports(folder):
    database = open_database(folder)
    content = (folder / FILE).read_bytes()
    (folder / FILE).unlink()
    with pytest.raises(DatabaseFailed, match="deleted or replaced"), database.transaction():
        database.write("INSERT INTO invitations VALUES ('a')")
    (folder / FILE).write_bytes(content)
    with pytest.raises(DatabaseFailed, match="deleted or replaced"), database.transaction():
        database.write("INSERT INTO invitations VALUES ('a')")
    database.close()


def test_a_full_disk_is_an_error_and_leaves_the_database_whole(folder):
    """SQLite's own limit raises what a full disk raises."""
    database = open_database(folder)
    (pages,) = database.read("PRAGMA page_count")[0]
    database.read(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DatabaseFailed, match="full"), database.transaction():
        database.write_many("INSERT INTO invitations VALUES (?)", [(f"{i:0500}",) for i in range(1000)])
    assert database.read("SELECT * FROM invitations") == []
    assert database.read("PRAGMA integrity_check") == [("ok",)]
    database.close()


def test_one_process_steps_and_a_dead_one_does_not_block(folder):
    first, second = open_database(folder), open_database(folder)
    with first.stepping() as one, second.stepping() as two:
        assert (one, two) == (True, False)
    code = (
        "import os, sys, pathlib\nfrom sqsgd.federation.collect.database import open_database\n"
        "with open_database(pathlib.Path(sys.argv[1])).stepping() as one:\n"
        "    assert one\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    with second.stepping() as two:
        assert two
    first.close()
    second.close()


def test_what_is_no_database_is_said(tmp_path):
    with pytest.raises(DatabaseFailed, match="does not exist"):
        open_database(tmp_path)
    (tmp_path / FILE).write_bytes(b"nonsense" * 1000)
    with pytest.raises(DatabaseFailed, match="not a database"):
        open_database(tmp_path)
    with pytest.raises(ValueError, match="must be a URL such as postgresql"):
        new_database(tmp_path, "mysql://somewhere")


def test_the_variable_names_the_database(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_DATABASE", "postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseFailed, match="PostgreSQL"):
        open_database(tmp_path)
