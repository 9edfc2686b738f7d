"""SQLite and a real PostgreSQL: on the disk before a call returns, never writing where nobody reads."""

import contextlib
import subprocess
import sys
import threading

import pytest
from devices import make, wait_until

from sqsgd.federation.collect.database import FILE, Conflict, DatabaseFailed, connect, open_database


@pytest.fixture
def folder(tmp_path):
    make(tmp_path / "study")
    return tmp_path / "study"


@pytest.fixture
def database(folder):
    with contextlib.closing(open_database(folder)) as database:
        yield database


@pytest.fixture
def postgres(tmp_path, new_url):
    """Three connections to a study in PostgreSQL."""
    make(tmp_path / "postgres", new_url)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(open_database(tmp_path / "postgres"))) for _ in range(3)
        ]


def test_commits_are_synced(folder, database, postgres):
    assert database.read("PRAGMA journal_mode") == [("wal",)]
    assert database.read("PRAGMA synchronous") == [(2,)]  # FULL
    assert postgres[0].read("SHOW synchronous_commit") == [("on",)]


def test_a_transaction_is_whole_or_nothing(database):
    with pytest.raises(DatabaseFailed, match="syntax"), database.transaction():  # noqa: PT012
        database.write("DELETE FROM rounds")
        database.write("nonsense")
    assert len(database.read("SELECT * FROM rounds")) == 1
    with pytest.raises(Conflict), database.transaction():
        database.write("INSERT INTO spent VALUES ('a'), ('a')")
    assert database.read("SELECT * FROM spent") == []


def test_a_deleted_or_replaced_file_takes_no_more_reports(folder, database):
    content = (folder / FILE).read_bytes()
    (folder / FILE).unlink()
    with pytest.raises(DatabaseFailed, match="deleted or replaced"), database.transaction():
        database.write("INSERT INTO spent VALUES ('a')")
    (folder / FILE).write_bytes(content)
    with pytest.raises(DatabaseFailed, match="deleted or replaced"), database.transaction():
        database.write("INSERT INTO spent VALUES ('a')")


def test_one_process_steps_and_a_dead_one_does_not_block(folder, database):
    with (
        contextlib.closing(open_database(folder)) as other,
        other.stepping() as one,
        database.stepping() as two,
    ):
        assert (one, two) == (True, False)
    code = (
        "import os, sys, pathlib\nfrom sqsgd.federation.collect.database import open_database\n"
        "with open_database(pathlib.Path(sys.argv[1])).stepping() as one:\n"
        "    assert one\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    with database.stepping() as two:
        assert two


def test_what_is_no_database_is_said(tmp_path):
    with pytest.raises(DatabaseFailed, match="does not exist"):
        open_database(tmp_path)
    (tmp_path / FILE).write_bytes(b"nonsense" * 1000)
    with pytest.raises(DatabaseFailed, match="not a database"):
        open_database(tmp_path)
    with pytest.raises(ValueError, match="must be a URL such as postgresql"):
        connect(tmp_path, "mysql://somewhere")


def test_the_variable_names_the_database(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_DATABASE", "postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseFailed, match="PostgreSQL"):
        open_database(tmp_path)


def test_a_second_study_needs_a_database_of_its_own(postgres, tmp_path):
    url = tmp_path / "postgres/database.url"
    assert url.stat().st_mode & 0o777 == 0o600
    with pytest.raises(DatabaseFailed, match="holds a study already"):
        make(tmp_path / "other", url.read_text().strip())
    assert not (tmp_path / "other" / "study.toml").exists()


def test_whoever_ends_a_round_waits_for_reports_under_way_and_no_longer(postgres):
    first, second, third = postgres
    order = []

    def waiting(count):
        locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: len(first.read(locks)) == count)

    def end_the_round():
        with second.transaction(alone=True):
            order.append("ended")

    def report_later():
        with third.transaction():
            order.append("later")

    with first.transaction():
        threads = [threading.Thread(target=end_the_round), threading.Thread(target=report_later)]
        threads[0].start()
        waiting(1)
        threads[1].start()
        waiting(2)
        order.append("report")
    for thread in threads:
        thread.join()
    assert order == ["report", "ended", "later"]


def test_one_connection_steps_and_a_closed_one_does_not_block(postgres):
    first, second, _ = postgres
    with first.stepping() as one, second.stepping() as two:
        assert (one, two) == (True, False)
    with first.stepping() as one:
        assert one
        first.close()
    locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
    wait_until(lambda: not second.read(locks))  # the server notices a moment later
    with second.stepping() as two:
        assert two


def test_a_server_or_a_client_that_vanishes_is_given_up(postgres, monkeypatch):
    known = postgres[0]._connection.info.get_parameters()
    assert (known["keepalives_idle"], known["tcp_user_timeout"]) == ("10", "20000")
    assert postgres[0].read("SHOW idle_in_transaction_session_timeout") == [("1min",)]
    before = postgres[0].now()
    monkeypatch.setattr("time.time", lambda: 0.0)  # the clock is the server's
    assert postgres[0].now() >= before


def test_a_clock_that_is_set_ends_no_round(database, monkeypatch):
    before = database.now()
    for jump in (-1e6, 1e6):
        monkeypatch.setattr("time.time", lambda jump=jump: before + jump)
        assert before <= database.now() < before + 60
