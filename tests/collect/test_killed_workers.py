"""Workers are killed at random moments: nothing is lost, and nothing counts twice."""

import json
import random
import threading
import time
from contextlib import ExitStack

import pytest
from devices import Device, ask, invited, make, persist, wait_until, worker

from sqsgd import Task
from sqsgd.federation.collect.rounds import opened, read_state
from sqsgd.training import server_step


def whole(device, fleet):
    """A report from invitation to confirmation, at whichever workers are alive."""
    status, answer = persist(lambda: device.join(fleet.url()), 120)
    if status != 200:
        return status, answer
    device.encode()
    return persist(lambda: device.send(fleet.url()), 120)


class Fleet:
    """Two workers, of which one after the other is killed and replaced."""

    def __init__(self, folder):
        self._folder, self._stack = folder, ExitStack()
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
    folder = tmp_path / "study"
    study = make(folder, url, users=64, rounds=2)
    waiting, confirmed, wrong = invited(folder, study, study.users), {}, []
    fleet, lock = Fleet(folder), threading.Lock()

    def devices():
        while True:
            with lock:
                if not waiting:
                    return
                device = Device(study, waiting.pop())
            status, answer = whole(device, fleet)
            with lock:
                if status == 200:
                    confirmed[device.task.round, device.task.client] = device.message
                else:
                    wrong.append((status, answer))

    threads = [threading.Thread(target=devices) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for reports in sorted(random.sample(range(study.users - 10), 2)):
            while len(confirmed) < reports:  # at any moment of what happens around this report
                assert wrong == []
                time.sleep(random.uniform(0.0, 0.01))
            fleet.kill()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(confirmed) == study.users  # each had a slot of its own
        wait_until((folder / "run/summary.json").exists)
        late = Device(study, invited(folder, study, 1)[0])
        status, answer = persist(lambda: late.join(fleet.url()))
        assert (status, answer["error"]) == (410, "closed")
        assert ask(fleet.url(), "GET", "/study")[1]["state"] == "ended"
    finally:
        fleet.close()
    check(folder, confirmed)


def check(folder, confirmed):
    """The database holds what was confirmed, and the models are what follows from it."""
    with opened(folder) as (study, database):
        rows = database.read("SELECT round, slot, report FROM slots WHERE report IS NOT NULL")
        assert {(round, slot): bytes(report) for round, slot, report in rows} == confirmed
        records = database.read("SELECT round, record FROM rounds WHERE record IS NOT NULL")
        assert {round: json.loads(record)["clients"] for round, record in records} == dict.fromkeys(
            range(study.rounds), study.slots
        )
        state = read_state(database, 0)
        for round in range(study.rounds):
            reports = [
                (
                    Task(round=round, client=slot, seed=study.seed, dim=study.dim, bound=state.bound),
                    confirmed[round, slot],
                    1.0,
                )
                for slot in range(study.slots)
            ]
            state, _ = server_step(study.made_scheme, study, state, reports)
            assert read_state(database, round + 1).weights.tobytes() == state.weights.tobytes()


def test_the_check_sees_a_lost_report(tmp_path):
    folder = tmp_path / "study"
    make(folder)
    with pytest.raises(AssertionError):
        check(folder, {(0, 0): b"confirmed"})
