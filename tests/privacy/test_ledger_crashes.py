"""Kill -9, power failures, broken disks: nothing that left goes uncounted, nothing good is refused."""

import contextlib
import errno
import functools
import os
import signal

import pytest
from crash_images import Disk, Recorder
from spending import files_of, in_child, pay, put_back, small_ledger, status_of

from sqsgd._internal import files
from sqsgd.privacy.ledger import Ledger, LedgerDamaged

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def recorded(tmp_path, *, witness: bool, spends: int = 3, failing: bool = False):
    """Everything that a ledger's making and some spends do to files, and when each of them returned.

    ``failing``: the first of them has written its line, but then its tip cannot take the old one's place.
    """
    root = tmp_path / "recorded"
    (root / "disk").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = Recorder(monkeypatch, root)
        elsewhere = root / "disk" / "witness" if witness else None
        ledger = Ledger.create(root / "ledger", max_epsilon=99.0, witness=elsewhere)
        recorder.events.append(("returned",))
        if failing:
            with monkeypatch.context() as broken:
                broken.setattr(os, "replace", fail)
                with pytest.raises(OSError, match="broken"):
                    pay(ledger, 99)
        for round in range(spends):
            pay(ledger, round)
            recorder.events.append(("returned",))
    return recorder.events


def fail(*_):
    raise OSError("broken")


def first_trouble(tmp_path, events, uncertain: int = 1) -> str:
    """Build every disk that a failure may leave; the first on which a ledger fails its promise."""
    folder = tmp_path / "image"
    (folder / "disk").mkdir(parents=True, exist_ok=True)
    disk, returned, seen = Disk(), -1, set()
    for step, event in enumerate(events):
        if event == ("returned",):
            returned += 1
        else:
            disk.do(event)
        for image in disk.images():
            key = (returned, *sorted(image.items()))
            if key in seen:
                continue
            seen.add(key)
            put_back(folder, {k: v for k, v in image.items() if "/" not in k})
            put_back(folder / "disk", {k[5:]: v for k, v in image.items() if "/" in k})
            try:
                told_apart(folder, returned, uncertain, witness="disk/witness" in image)
            except (AssertionError, LedgerDamaged, OSError) as error:
                return f"step {step}, {event[:2]}: {error!r}"
    assert len(seen) > 30
    return ""


def told_apart(folder, returned, uncertain, *, witness):
    elsewhere = folder / "disk" / "witness"
    if returned < 0 and not (folder / "ledger").exists():
        for tip in (folder / "ledger.tip", elsewhere):
            tip.unlink(missing_ok=True)  # they name the place where they were recorded
        Ledger.create(folder / "ledger", max_epsilon=99.0)
        return
    ledger = Ledger(folder / "ledger", witness=elsewhere if witness else None)
    counted = ledger.spent
    assert counted >= returned, "too little is counted"
    assert counted <= returned + uncertain, "too much is counted"
    pay(ledger, 50)
    pay(ledger, 51)
    again = Ledger(folder / "ledger", witness=elsewhere if witness else None)
    assert again.spent == counted + 2
    assert again.interrupted == ""


@pytest.mark.parametrize("witness", [False, True])
@pytest.mark.parametrize("failing", [False, True])
def test_no_power_failure_loses_a_report_or_refuses_a_good_ledger(tmp_path, monkeypatch, witness, failing):
    """``failing``: nor does one that comes while an earlier crash is being put right."""
    events = recorded(tmp_path, witness=witness, failing=failing)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # of the images: only time
    assert first_trouble(tmp_path, events, uncertain=2 if failing else 1) == ""


def test_what_a_crash_left_is_synced_before_the_tip_knows_it(tmp_path, monkeypatch):
    """Its writer may have died before the sync: images without the first sync show nothing wrong."""
    events = recorded(tmp_path, witness=False, failing=True)
    events.remove(("sync", "ledger"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    assert first_trouble(tmp_path, events, uncertain=2) == ""
    events.remove(("sync", "ledger"))
    assert first_trouble(tmp_path, events, uncertain=2) != ""


def without(kind, name):
    return lambda events: [event for event in events if event[:2] != (kind, name)]


def tip_before_ledger(events):
    """Each line is written after what follows it up to the tip's replacement, not before."""
    changed, held = [], []
    for event in events:
        if event[0] == "write" and event[1] == "ledger":
            held = [event]
        elif held and event == ("sync", "ledger"):
            held.append(event)
        else:
            changed.append(event)
            if event == ("sync", "."):
                changed += held
                held = []
    return changed


def report_before_tip(events):
    """A report that leaves as soon as its line is written, synced or not."""
    kept = [event for event in events if event != ("returned",)]
    changed = []
    for event in kept:
        changed.append(event)
        if event[0] == "write" and event[1] in ("ledger", "ledger.part"):
            changed.append(("returned",))
    return changed


@pytest.mark.parametrize(
    "broken",
    [
        without("sync", "ledger"),
        without("sync", "ledger.tip.part"),
        without("sync", "."),
        tip_before_ledger,
        report_before_tip,
    ],
)
def test_a_sync_less_or_another_order_would_be_found_out(tmp_path, monkeypatch, broken):
    events = recorded(tmp_path, witness=False)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    assert broken(events) != events
    assert first_trouble(tmp_path, broken(events)) != ""


def test_kill_at_every_call(tmp_path):
    """The child kills itself at its n-th call, having written half of what it was about to write."""
    ledger = small_ledger(tmp_path, reports=1, witness=tmp_path / "witness")
    left_behind = set()
    for at in range(1, 60):
        before = ledger.spent

        def die_at(at=at):
            calls = iter(range(1, 10**6))

            def dying(really, *args):
                if next(calls) == at:
                    if really is pwrite:
                        really(args[0], args[1][: len(args[1]) // 2], args[2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return really(*args)

            pwrite = os.pwrite
            for name in ("open", "pwrite", "fsync", "replace", "close"):
                setattr(os, name, functools.partial(dying, getattr(os, name)))
            pay(ledger, 10 + at)

        ended = status_of(in_child(die_at))
        again = Ledger(ledger.path)
        assert again.spent - before in ({1} if ended == 0 else {0, 1})
        left_behind.add(again.interrupted.replace(str(tmp_path), ""))
        if ended == 0:
            break
        pay(ledger, 100 + at)
        assert Ledger(ledger.path).interrupted == ""
    else:
        pytest.fail("no end of calls")
    assert len(left_behind) == 4, left_behind  # nothing, half a line, a line that no or not every tip knows


class FailingDisk:
    """At the n-th of the calls, or from it on, an error is raised; half of what is written is on the disk."""

    def __init__(self, monkeypatch, at, error, *, for_good=False, calls=()):
        self.at, self.error, self.for_good, self.count, self.failed = at, error, for_good, 0, ""
        for name in ("open", "pwrite", "fsync", "replace", *calls):
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name, really):
        def call(*args, **more):
            if name == "open" and not args[1] & os.O_CREAT:
                return really(*args, **more)
            self.count += 1
            if self.count == self.at or (self.for_good and self.count > self.at):
                self.failed = self.failed or name
                if name == "pwrite":
                    really(args[0], args[1][: len(args[1]) // 2], args[2])
                raise self.error
            return really(*args, **more)

        return call


FULL, BROKEN = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")


@pytest.mark.parametrize("error", [FULL, BROKEN, KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("witness", [False, True])
def test_whichever_call_fails(tmp_path, error, for_good, witness):
    """Or is interrupted by Ctrl-C, also while the ledger is created or cut."""
    unchanged, interrupt = 0, isinstance(error, KeyboardInterrupt)
    calls = ("ftruncate", "close", "fstat") if interrupt and not for_good else ()
    for at in range(1, 60):
        path = tmp_path / f"ledger {at}"
        elsewhere = tmp_path / f"witness {at}" if witness else None
        with pytest.MonkeyPatch.context() as monkeypatch:
            created = FailingDisk(monkeypatch, at, error)
            with contextlib.suppress(type(error)):
                Ledger.create(path, max_epsilon=1000.0, witness=elsewhere)
        if not path.exists():
            Ledger.create(path, max_epsilon=1000.0, witness=elsewhere)
        ledger = Ledger(path)
        pay(ledger, 0)
        before, spent = files_of(tmp_path), ledger.spent
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = FailingDisk(monkeypatch, at, error, for_good=for_good, calls=calls)
            raised = None
            try:
                pay(ledger, 1)
            except type(error) as caught:
                raised = caught
            assert raised is (error if disk.failed else None)
        if not disk.failed and not created.failed:
            break
        counted = Ledger(path).spent
        assert spent <= counted == ledger.spent <= spent + 1
        if not disk.failed or disk.failed == "replace":
            assert counted == spent + 1  # a tip may know the line: it stays
        elif counted == spent and not interrupt:
            assert files_of(tmp_path) == before
            unchanged += 1
        pay(ledger, 2)
        assert Ledger(path).interrupted == ""
    else:
        pytest.fail("no end of calls")
    assert interrupt or unchanged >= 5 + 3 * witness


def test_a_line_that_could_not_be_taken_back_counts(tmp_path, monkeypatch):
    """The line is there, the tip is not, and cutting fails too: it is counted, not forgotten."""
    ledger = small_ledger(tmp_path, reports=2)
    with monkeypatch.context() as broken:
        broken.setattr(files, "cut_at", lambda *_: (_ for _ in ()).throw(BROKEN))
        FailingDisk(broken, 3, BROKEN)
        with pytest.raises(OSError, match="broken"):
            pay(ledger, 5)
    assert ledger.spent == Ledger(ledger.path).spent == 3
    pay(ledger, 6)
    assert Ledger(ledger.path).interrupted == ""


def test_without_locks_nothing_is_spent(tmp_path, monkeypatch):
    """Some network file systems have none."""
    ledger = small_ledger(tmp_path, reports=1)
    before = files_of(tmp_path)

    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(files.fcntl, "flock", no_locks)
        with pytest.raises(OSError, match="keep it on a local disk"):
            pay(ledger, 7)
    assert files_of(tmp_path) == before
    pay(ledger, 7)
    assert ledger.spent == 2
