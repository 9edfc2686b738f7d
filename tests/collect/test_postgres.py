"""PostgreSQL, a real server."""

import threading

import pytest
from devices import make

from sqsgd.federation.collect.database import DatabaseFailed, open_database


@pytest.fixture
def folder(tmp_path, new_url):
    make(tmp_path / "study", new_url)
    return tmp_path / "study"


def test_the_url_is_kept_for_its_owner_alone(folder):
    assert (folder / "database.url").stat().st_mode & 0o777 == 0o600
    assert not (folder / "collect.db").exists()


def test_a_second_study_needs_a_database_of_its_own(folder, tmp_path):
    with pytest.raises(DatabaseFailed, match="holds a study already"):
        make(tmp_path / "other", (folder / "database.url").read_text().strip())
    assert not (tmp_path / "other" / "study.toml").exists()


def test_whoever_ends_a_round_waits_for_reports_under_way_and_no_longer(folder):
    first, second, third = (open_database(folder) for _ in range(3))
    order, waiting = [], threading.Event()

    def end_the_round():
        waiting.set()
        with second.transaction(alone=True):
            order.append("ended")

    def report_later():
        with third.transaction():
            order.append("later")

    with first.transaction():
        threads = [threading.Thread(target=end_the_round)]
        threads[0].start()
        waiting.wait()
        while not first.read("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            pass
        threads.append(threading.Thread(target=report_later))
        threads[1].start()
        while len(first.read("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")) < 2:
            pass
        order.append("report")
    for thread in threads:
        thread.join()
    assert order == ["report", "ended", "later"]
    for each in (first, second, third):
        each.close()


def test_one_connection_steps_and_a_closed_one_does_not_block(folder):
    first, second = open_database(folder), open_database(folder)
    with first.stepping() as one, second.stepping() as two:
        assert (one, two) == (True, False)
    with first.stepping() as one:
        assert one
        first.close()
    while not second.read("SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'")[0][0]:
        pass  # the server notices a moment later
    with second.stepping() as two:
        assert two
    second.close()


def test_a_server_or_a_client_that_vanishes_is_given_up(folder):
    database = open_database(folder)
    known = database._connection.info.get_parameters()
    assert (known["keepalives_idle"], known["tcp_user_timeout"]) == ("10", "20000")
    assert database.read("SHOW idle_in_transaction_session_timeout") == [("1min",)]
    database.close()


def test_the_clock_is_the_servers(folder, monkeypatch):
    database = open_database(folder)
    before = database.now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert database.now() >= before
    database.close()
