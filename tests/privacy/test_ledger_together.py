"""Processes, threads and forks on one ledger: the last of it is spent once."""

import contextlib
import fcntl
import os
import threading
import time

import pytest
from spending import in_child, pay, small_ledger, status_of

from sqsgd._internal import files
from sqsgd.privacy.ledger import BudgetSpent, Ledger
from sqsgd.privacy.ledger_files import LedgerFiles

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def spend_all(ledger, task):
    """How many reports go out before the cap is reached."""
    for round in range(10**6):
        try:
            pay(ledger, round, task=task)
        except BudgetSpent:
            return round
    return None


@pytest.mark.parametrize("fresh", [False, True])
def test_processes_and_threads_race_for_the_last_of_it(tmp_path, fresh):
    ledger = small_ledger(tmp_path, reports=1, cap=60.0)
    reading, writing = os.pipe()

    def race(name):
        own = Ledger(ledger.path) if fresh else ledger

        def thread(number):
            os.write(writing, b"%d\n" % spend_all(own, f"{name} {number}"))

        threads = [threading.Thread(target=thread, args=(number,)) for number in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    children = [in_child(lambda name=name: race(name)) for name in "abc"]
    race("parent")
    assert [status_of(child) for child in children] == [0, 0, 0]
    os.close(writing)
    with os.fdopen(reading) as answers:
        sent = [int(line) for line in answers]
    assert len(sent) == 8
    assert sum(sent) == 59
    assert ledger.left == Ledger(ledger.path).left == 0
    assert len(ledger.entries) == 60


def race_of_two(tmp_path, monkeypatch):
    """Two threads want the last epsilon, and linger between looking and writing; how many got it."""
    ledger = small_ledger(tmp_path, reports=0, cap=1.0)
    real = LedgerFiles._repair

    def slowly(self, descriptor, history):
        time.sleep(0.1)
        real(self, descriptor, history)

    monkeypatch.setattr(LedgerFiles, "_repair", slowly)
    got = []

    def want(number):
        with contextlib.suppress(BudgetSpent):
            got.append(pay(Ledger(ledger.path), number))

    threads = [threading.Thread(target=want, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return len(got)


def test_two_want_the_last_of_it_and_without_a_lock_both_would_get_it(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    with monkeypatch.context() as patch:
        assert race_of_two(tmp_path / "locked", patch) == 1
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    real, turn = files.prepared, threading.Lock()

    def one_at_a_time(path, content):  # so that the two do not trip over one temporary file
        with turn:
            temporary = real(path, content)
            own = temporary.with_name(f"{temporary.name}{threading.get_ident()}")
            own.write_bytes(content)
        return own

    monkeypatch.setattr(files, "prepared", one_at_a_time)
    assert race_of_two(tmp_path, monkeypatch) == 2


def test_an_object_that_others_have_overtaken(tmp_path):
    one = small_ledger(tmp_path, reports=1, cap=3.0)
    other = Ledger(one.path)
    pay(other, 1)
    pay(one, 2)
    for each in (one, other):
        assert each.left == 0
        with pytest.raises(BudgetSpent):
            pay(each, 3)
    assert one.entries == other.entries


def test_a_replaced_file_is_not_spent_from_under_its_old_lock(tmp_path):
    """While one waits for the lock, the file is replaced: it opens the new one."""
    ledger = small_ledger(tmp_path, reports=1)
    with files.locked(ledger.path, os.O_RDWR):
        waiting = threading.Thread(target=pay, args=(ledger, 5))
        waiting.start()
        time.sleep(0.1)
        copy = tmp_path / "copy"
        copy.write_bytes(ledger.path.read_bytes())
        copy.rename(ledger.path)
    waiting.join()
    assert Ledger(ledger.path).spent == 2


def test_a_fork_inherits_no_lock(tmp_path):
    """A child that is born while a thread holds the lock closes it, so none waits for the child's end."""
    ledger = small_ledger(tmp_path, reports=1)
    inside, go_on = threading.Event(), threading.Event()

    def hold():
        with files.locked(ledger.path, os.O_RDWR):
            inside.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    (held,) = files._held

    def look():
        assert not files._held
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(held)
        pay(Ledger(ledger.path), 7)  # waits for the parent's thread, not for ever

    child = in_child(look)
    time.sleep(0.05)
    go_on.set()
    holder.join()
    assert status_of(child) == 0
    assert ledger.spent == 2
