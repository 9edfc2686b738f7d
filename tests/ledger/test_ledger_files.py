"""A ledger's files: which must be there, what follows the last line, and whose they are."""

import shutil

import pytest
from spending import files_of, pay, put_back, small_ledger

from sqsgd.privacy.ledger import Ledger, LedgerDamaged, LedgerRolledBack
from sqsgd.privacy.ledger_files import MAX_LINE


def test_a_witness_that_has_moved(tmp_path):
    ledger = small_ledger(tmp_path, witness=tmp_path / "witness")
    (tmp_path / "witness").rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerDamaged, match="witness is missing"):
        Ledger(ledger.path)
    moved_one = Ledger(ledger.path, witness=tmp_path / "elsewhere")
    pay(moved_one, 10)
    assert moved_one.witness == tmp_path / "elsewhere"
    assert Ledger(ledger.path, witness=tmp_path / "elsewhere").spent == 4


def test_files_that_are_gone_or_belong_elsewhere(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = small_ledger(tmp_path / "a"), small_ledger(tmp_path / "b")
    kept = files_of(tmp_path / "a")
    shutil.copy(other.path.with_name("ledger.tip"), one.path.with_name("ledger.tip"))
    with pytest.raises(LedgerRolledBack, match="belongs to a ledger other than"):
        Ledger(one.path)
    put_back(tmp_path / "a", {"ledger": kept["ledger"]})
    with pytest.raises(LedgerDamaged, match=r"ledger.tip is missing"):
        Ledger(one.path)
    put_back(tmp_path / "a", {"ledger.tip": kept["ledger.tip"]})
    for attempt in (lambda: Ledger(one.path), lambda: pay(one, 9)):
        with pytest.raises(LedgerRolledBack, match="is missing, but"):
            attempt()
    with pytest.raises(LedgerRolledBack, match="records 4 lines"):
        Ledger.create(one.path, max_epsilon=1e6)
    put_back(tmp_path / "a", {"ledger.tip": b"nonsense"})
    with pytest.raises(LedgerDamaged):
        Ledger.create(one.path, max_epsilon=1e6)


def test_two_ledgers_cannot_share_a_witness(tmp_path):
    one = Ledger.create(tmp_path / "one", max_epsilon=1.0, witness=tmp_path / "witness")
    with pytest.raises(LedgerRolledBack, match="is the tip of"):
        Ledger.create(tmp_path / "two", max_epsilon=1.0, witness=tmp_path / "witness")
    pay(one, 0)


def test_a_line_torn_at_every_length(tmp_path):
    ledger = small_ledger(tmp_path, reports=2)
    before = files_of(tmp_path)
    pay(ledger, 2)
    line = ledger.path.read_bytes()[len(before["ledger"]) :]
    for length in range(len(line) + 1):
        for filling in (b"", b"\0" * (len(line) - length), b"\xff\n"):
            if length == len(line) and filling:
                continue
            put_back(tmp_path, {**before, "ledger": before["ledger"] + line[:length] + filling})
            torn = Ledger(ledger.path)
            counted = 3 if length == len(line) else 2
            assert torn.spent == counted
            assert bool(torn.interrupted) == (length > 0 or filling != b"")
            if length % 16 == 0 or length > len(line) - 3:
                pay(torn, 9)
                again = Ledger(ledger.path)
                assert (again.spent, again.interrupted) == (counted + 1, "")
                assert b"\0" not in again.path.read_bytes()


def test_more_than_a_line_after_the_tip_is_no_crash(tmp_path):
    ledger = small_ledger(tmp_path, reports=2)
    tip = (tmp_path / "ledger.tip").read_bytes()
    pay(ledger, 2)
    good = ledger.path.read_bytes()
    (tmp_path / "ledger.tip").write_bytes(tip)
    assert Ledger(ledger.path).interrupted.startswith("the last line counts")
    for more in (b"x", b"x" * (MAX_LINE + 1)):
        ledger.path.write_bytes(good + more)
        with pytest.raises(LedgerDamaged):
            Ledger(ledger.path)
