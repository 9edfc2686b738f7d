"""Disks that are full or broken: nothing is spent, nothing leaves, the ledger stays good."""

import errno
import os

import pytest
from spending import files_of, pay, small_ledger

from sqsgd.files import durable
from sqsgd.privacy.ledger import Ledger

CALLS = ("open", "pwrite", "fsync", "replace")


class FailingDisk:
    """From the n-th of the calls on, or at it alone, writing fails."""

    def __init__(self, monkeypatch, at, *, error=errno.ENOSPC, for_good=False, half=True, calls=CALLS):
        self.at, self.error, self.for_good, self.half = at, error, for_good, half
        self.count, self.failed = 0, ""
        for name in calls:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name, really):
        def call(*args, **more):
            if name == "open" and not args[1] & os.O_CREAT:
                return really(*args, **more)
            self.count += 1
            if self.count == self.at or (self.for_good and self.count > self.at):
                self.failed = self.failed or name
                if name == "pwrite" and self.half:
                    really(args[0], args[1][: len(args[1]) // 2], args[2])
                raise OSError(self.error, os.strerror(self.error))
            return really(*args, **more)

        return call


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("witness", [False, True])
def test_whichever_call_fails(tmp_path, error, for_good, witness):
    ledger = small_ledger(tmp_path, reports=2, witness=tmp_path / "witness" if witness else None)
    unchanged = 0
    for at in range(1, 40):
        before, spent = files_of(tmp_path), ledger.spent
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = FailingDisk(monkeypatch, at, error=error, for_good=for_good)
            raised = 0
            try:
                pay(ledger, 10 + at)
            except OSError as caught:
                raised = caught.errno
            assert raised == (error if disk.failed else 0)
            if not disk.failed:
                break
        counted = Ledger(ledger.path).spent
        assert counted == ledger.spent
        if disk.failed == "replace" or counted != spent:
            assert counted == spent + 1  # a tip may know the line: it stays
        else:
            assert files_of(tmp_path) == before
            unchanged += 1
        pay(ledger, 100 + at)
        assert Ledger(ledger.path).interrupted == ""
    else:
        pytest.fail("no end of calls")
    assert unchanged >= 5 + 3 * witness


def test_a_full_disk(tmp_path, monkeypatch):
    """Every write fails, in part or whole, before and after; then there is room again."""
    ledger = small_ledger(tmp_path, reports=2)
    before = files_of(tmp_path)
    with monkeypatch.context() as full:
        FailingDisk(full, 1, for_good=True, calls=("pwrite",))
        for round in range(5, 8):
            with pytest.raises(OSError, match="No space left"):
                pay(ledger, round)
        assert ledger.spent == 2
    assert files_of(tmp_path) == before
    pay(ledger, 5)
    assert Ledger(ledger.path).spent == 3


def test_a_line_that_could_not_be_taken_back_counts(tmp_path, monkeypatch):
    """The line is there, the tip is not, and cutting fails too: it is counted, not forgotten."""
    ledger = small_ledger(tmp_path, reports=2)
    with monkeypatch.context() as broken:
        broken.setattr(durable, "cut_at", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        FailingDisk(broken, 3, error=errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            pay(ledger, 5)
    assert ledger.spent == Ledger(ledger.path).spent == 3
    pay(ledger, 6)
    assert Ledger(ledger.path).interrupted == ""


def test_a_disk_that_fails_while_a_ledger_is_made(tmp_path):
    for at in range(1, 40):
        path = tmp_path / f"ledger {at}"
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = FailingDisk(monkeypatch, at)
            try:
                Ledger.create(path, max_epsilon=5.0, witness=tmp_path / f"witness {at}")
            except OSError:
                assert disk.failed
            if not disk.failed:
                break
        if not path.exists():
            Ledger.create(path, max_epsilon=5.0, witness=tmp_path / f"witness {at}")
        pay(Ledger(path), 0)
    else:
        pytest.fail("no end of calls")


def test_interrupts_lose_nothing(tmp_path, monkeypatch):
    """Ctrl-C at any call: the report does not leave, and the ledger is good."""

    class Interrupting(FailingDisk):
        def _failing(self, name, really):
            def call(*args, **more):
                self.count += 1
                if self.count == self.at:
                    self.failed = name
                    raise KeyboardInterrupt
                return really(*args, **more)

            return call

    ledger = small_ledger(tmp_path, reports=2)
    for at in range(1, 60):
        spent = ledger.spent
        with monkeypatch.context() as patch:
            disk = Interrupting(patch, at, calls=(*CALLS, "ftruncate", "close", "fstat"))
            try:
                pay(ledger, 10 + at)
            except KeyboardInterrupt:
                assert disk.failed
            if not disk.failed:
                break
        assert spent <= ledger.spent == Ledger(ledger.path).spent <= spent + 1
        pay(ledger, 100 + at)
    else:
        pytest.fail("no end of calls")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_way_is_not_written_through(tmp_path, link):
    """Whoever may write into the folder could else have the client write over a file of its own."""
    ledger = small_ledger(tmp_path, reports=1)
    (tmp_path / "precious").write_text("precious")
    link(tmp_path / "precious", tmp_path / "ledger.tip.part")
    pay(ledger, 7)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "ledger.tip").is_symlink()
    assert Ledger(ledger.path).spent == 2


def test_without_locks_nothing_is_spent(tmp_path, monkeypatch):
    """Some network file systems have none."""
    ledger = small_ledger(tmp_path, reports=1)
    before = files_of(tmp_path)

    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(durable.fcntl, "flock", no_locks)
        with pytest.raises(OSError, match="keep it on a local disk"):
            pay(ledger, 7)
    assert files_of(tmp_path) == before
    pay(ledger, 7)
    assert ledger.spent == 2
