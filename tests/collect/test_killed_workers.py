"""Workers are killed, disks are full, clocks jump: nothing is lost, and nothing counts twice."""

import contextlib
import json
import random
import resource
import threading
import time

import numpy as np
import pytest
from devices import Reporter, ask, make, persist, served, wait_until, worker

from sqsgd.federation.collect.database import SqliteDatabase
from sqsgd.federation.collect.intake import counts, stage, task_of
from sqsgd.federation.collect.rounds import end_study, opened, read_state
from sqsgd.training import server_step


def whole(device, fleet):
    """A report until it is confirmed, at whichever workers are alive: its round, or what was said."""
    while True:
        status, known = persist(lambda: ask(fleet.url(), "GET", "/round"), 120)
        if status == 200 and known["state"] == "open":
            device.message = None  # a report that was refused for its round is not sent again
            status, answer = persist(lambda at=known["round"]: device.send(fleet.url(), at), 120)
            if status != 410:
                return status, answer
        time.sleep(0.02)


class Fleet:
    """Two workers, of which one after the other is killed and replaced."""

    def __init__(self, folder):
        self._folder, self._stack = folder, contextlib.ExitStack()
        self.workers = [self._start(), self._start()]

    def _start(self):
        return self._stack.enter_context(worker(self._folder))

    def kill(self):
        """Kill one, by its id, with a signal that it cannot see; start another."""
        i = random.randrange(2)
        self.workers[i].process.kill()
        self.workers[i].process.wait()
        self.workers[i] = self._start()

    def url(self):
        return random.choice(self.workers).url

    def close(self):
        self._stack.close()


def test_nothing_is_lost_and_nothing_counts_twice(tmp_path, url):
    storm(tmp_path / "study", url, users=64, kills=2)


def storm(folder, url, *, users, kills):
    """Devices report while workers are killed; then everything is checked. benchmarks/collect_kills.py."""
    study = make(folder, url, users=users, rounds=2, fewest=1)
    waiting = [Reporter(folder, study) for _ in range(study.users)]
    confirmed, wrong = [], []
    fleet, lock = Fleet(folder), threading.Lock()

    def devices():
        while True:
            with lock:
                if not waiting:
                    return
                device = waiting.pop()
            status, answer = whole(device, fleet)
            with lock:
                # 409: an answer was lost with its worker, and the report counts
                if status == 200 or (status, answer["error"]) == (409, "token-spent"):
                    confirmed.append(device)
                else:
                    wrong.append((status, answer))

    threads = [threading.Thread(target=devices) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for reports in sorted(random.sample(range(study.users - 10), kills)):
            while len(confirmed) < reports:  # at any moment of what happens around this report
                assert wrong == []
                time.sleep(random.uniform(0.0, 0.01))
            fleet.kill()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(confirmed) == study.users
        with opened(folder) as (_, database):
            # The first round may have had a report too many for the second to fill.
            end_study(database, study)
        wait_until((folder / "run/summary.json").exists)
        status, answer = persist(lambda: Reporter(folder, study).send(fleet.url()))
        assert (status, answer["error"]) == (410, "closed")
        wait_until(lambda: persist(lambda: ask(fleet.url(), "GET", "/round"))[1]["state"] == "ended")
    finally:
        fleet.close()
    check(folder, [(device.round, device.message) for device in confirmed])


def check(folder, confirmed):
    """The database holds the counts of what was confirmed, and the models are what follows from it."""
    with opened(folder) as (study, database):
        scheme = study.made_scheme
        assert len(database.read("SELECT * FROM spent")) == len(confirmed)
        found = database.read("SELECT record FROM rounds ORDER BY round")
        records = [json.loads(line) for (line,) in found if line]
        state = read_state(database, 0)
        for round in range(len(records)):
            task = task_of(study, round)
            reports = [(task, message, 1.0) for at, message in confirmed if at == round]
            expected = np.zeros(scheme.symbols, np.int64)
            for _, message, _ in reports:
                np.add.at(expected, scheme.open(message, task)[0], 1)
            assert counts(database, study, round).tolist() == expected.tolist()
            assert records[round].get("clients", records[round].get("left_out")) == len(reports)
            if "clients" in records[round]:
                state, _ = server_step(scheme, study, state, [(task, expected, None)])
            assert read_state(database, round + 1).weights.tobytes() == state.weights.tobytes()


@contextlib.contextmanager
def full_disk(running, folder, _server):
    """The system refuses to let the worker's files grow."""
    before = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
    size = (folder / "collect.db-wal").stat().st_size
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    yield
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def moved_database(_running, folder, _server):
    (folder / "collect.db").rename(folder / "elsewhere.db")
    yield
    (folder / "elsewhere.db").rename(folder / "collect.db")


@contextlib.contextmanager
def stopped_postgresql(_running, _folder, server):
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.parametrize("fault", [full_disk, moved_database, stopped_postgresql])
def test_while_the_database_fails_reports_are_refused(tmp_path, request, fault):
    """What was confirmed before is there afterwards; what was refused counts when it is sent again, once."""
    postgresql = fault is stopped_postgresql
    url = request.getfixturevalue("new_url") if postgresql else ""
    server, folder = request.getfixturevalue("postgres_server") if postgresql else None, tmp_path / "study"
    study = make(folder, url, users=6, rounds=2, fewest=1)
    before, during = Reporter(folder, study), Reporter(folder, study)
    with worker(folder) as running:
        assert before.send(running.url)[0] == 200
        with fault(running, folder, server):
            for _ in range(2):
                status, answer = during.send(running.url)
                assert (status, answer["error"]) == (503, "storage")
            assert ask(running.url, "GET", "/health")[0] == 503
            assert "no report is accepted until this is solved" in running.log.read_text()
        assert persist(lambda: during.send(running.url))[0] == 200
        assert [each.send(running.url)[0] for each in (before, during)] == [409, 409]
        with opened(folder) as (_, database):
            end_study(database, study)
    check(folder, [(0, before.message), (0, during.message)])


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_jumps_loses_and_repeats_nothing(tmp_path, monkeypatch, hours):
    """Every third report meets another hour: rounds end early or wait; what was confirmed counts once."""
    shift, now, folder = [0.0], SqliteDatabase.now, tmp_path / "study"
    monkeypatch.setattr(SqliteDatabase, "now", lambda self: now(self) + shift[0])
    study = make(folder, users=120, rounds=12, fewest=1, round_seconds=3600.0)
    confirmed, refused = [], {}
    with served(folder) as url:
        for number in range(9):
            device, shift[0] = Reporter(folder, study), 3600.0 * hours * (number % 3 == 1)
            with opened(folder) as (_, database):
                status, answer = device.send(url, stage(database).round)
            if status == 200:
                assert device.send(url)[0] == 409
                confirmed.append((device.round, device.message))
            else:
                refused[device] = answer["error"]
        shift[0] = 0.0
        # The same bytes, by the right clock:
        late = [device for device in refused if device.send(url)[0] == 200]
    confirmed += [(device.round, device.message) for device in late]
    if hours < 0:
        assert (len(late), set(refused.values())) == (3, {"round-not-open"})
    assert len(confirmed) >= 6
    assert set(refused.values()) <= {"round-not-open", "round-over"}
    with opened(folder) as (_, database):
        end_study(database, study)
    check(folder, confirmed)


def test_the_check_sees_a_lost_report(tmp_path):
    folder = tmp_path / "study"
    study = make(folder)
    device = Reporter(folder, study)
    device.body()
    with pytest.raises(AssertionError):
        check(folder, [(0, device.message)])
