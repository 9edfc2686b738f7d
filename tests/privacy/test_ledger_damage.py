"""Changed bits, cuts, lines more or less, older copies, lost files: each is seen and refused."""

import os
import shutil

import pytest
from spending import files_of, pay, put_back, refused, small_ledger

from sqsgd.privacy import ledger_files as history
from sqsgd.privacy.ledger import Ledger, LedgerDamaged, LedgerRolledBack
from sqsgd.privacy.ledger_files import MAX_LINE


def flips_that_pass(ledger, name):
    path = ledger.path.with_name(name)
    good = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in range(len(good)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([good[at] ^ 1 << bit]), at)
                if not refused(ledger.path):
                    return [(at, bit)]  # and it was spent from, so the files have changed
            os.pwrite(file.fileno(), good[at : at + 1], at)
    return []


@pytest.mark.parametrize("name", ["ledger", "ledger.tip", "witness"])
def test_every_flipped_bit(tmp_path, name):
    ledger = small_ledger(tmp_path, reports=2, witness=tmp_path / "witness")
    assert flips_that_pass(ledger, name) == []
    assert not refused(ledger.path)


def test_without_the_digests_flips_would_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_digest", lambda body, before: b"0" * 64)
    assert flips_that_pass(small_ledger(tmp_path, reports=2), "ledger") != []


@pytest.mark.parametrize("name", ["ledger", "ledger.tip"])
def test_every_cut(tmp_path, name):
    ledger = small_ledger(tmp_path, reports=3)
    path = tmp_path / name
    good = path.read_bytes()
    for length in reversed(range(len(good))):
        os.truncate(path, length)
        assert refused(ledger.path), length
    path.write_bytes(good)
    assert not refused(ledger.path)


def moved(lines):
    """Lines put in another order, left out, repeated, taken from elsewhere, in some ways."""
    for i in range(len(lines)):
        yield lines[:i] + lines[i + 1 :]
        yield [*lines[: i + 1], *lines[i:]]
        for j in range(i):
            swapped = list(lines)
            swapped[i], swapped[j] = lines[j], lines[i]
            yield swapped


def test_lines_in_another_order(tmp_path):
    ledger = small_ledger(tmp_path, reports=4)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    variants = [b"".join(variant) for variant in moved(lines)]
    # The last line once more cannot be told from one that a crash cut off: it is dropped, not counted.
    repeated_end = b"".join([*lines, lines[-1]])
    assert repeated_end in variants
    for variant in variants:
        ledger.path.write_bytes(variant)
        if variant != repeated_end:
            assert refused(ledger.path)
    ledger.path.write_bytes(repeated_end)
    assert Ledger(ledger.path).spent == 4


def test_both_files_put_back_together(tmp_path):
    """Not to be seen by the files alone; by a process that knew them, and by a witness elsewhere, it is."""
    (tmp_path / "alone").mkdir()
    ledger = small_ledger(tmp_path / "alone")
    old = files_of(tmp_path / "alone")
    pay(ledger, 10)
    put_back(tmp_path / "alone", old)
    assert Ledger(ledger.path).spent == 3
    with pytest.raises(LedgerRolledBack, match="has become shorter"):
        pay(ledger, 11)

    (tmp_path / "watched").mkdir()
    (tmp_path / "disk").mkdir()
    ledger = small_ledger(tmp_path / "watched", witness=tmp_path / "disk" / "witness")
    old = files_of(tmp_path / "watched")
    pay(ledger, 10)
    put_back(tmp_path / "watched", old)
    with pytest.raises(LedgerRolledBack, match=r"witness records 5"):
        Ledger(ledger.path)


def test_a_copy_spent_from_twice_is_seen_by_the_witness(tmp_path):
    for name in "abw":
        (tmp_path / name).mkdir()
    ledger = small_ledger(tmp_path / "a", witness=tmp_path / "w" / "witness")
    put_back(tmp_path / "b", files_of(tmp_path / "a"))
    pay(ledger, 10)
    assert refused(tmp_path / "b" / "ledger")
    pay(ledger, 11)


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
    (tmp_path / "notes").write_bytes(b"\x00\x01\n" * 9)
    with pytest.raises(LedgerDamaged, match="is not a ledger's heading: this is another file"):
        Ledger(tmp_path / "notes")


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


@pytest.mark.parametrize("name", ["ledger", "ledger.tip", "witness"])
@pytest.mark.parametrize("reports", [0, 1, 3])
def test_an_older_copy_of_one_file(tmp_path, name, reports):
    ledger = small_ledger(tmp_path, reports=reports, witness=tmp_path / "witness")
    old = (tmp_path / name).read_bytes()
    for round in range(10, 12):
        pay(ledger, round)
    (tmp_path / name).write_bytes(old)
    for attempt in (lambda: Ledger(ledger.path), lambda: pay(ledger, 20), lambda: ledger.spent):
        with pytest.raises(LedgerRolledBack):
            attempt()


@pytest.mark.parametrize("behind", [0, 1])
def test_a_tip_of_another_branch(tmp_path, behind):
    """Put back, spent from otherwise up to the same length, and then one file of the first branch again."""
    ledger = small_ledger(tmp_path)
    common = files_of(tmp_path)
    pay(ledger, 10)
    first = files_of(tmp_path)
    put_back(tmp_path, common)
    other = Ledger(ledger.path)
    for round in range(20, 21 + behind):
        pay(other, round)
    (tmp_path / "ledger.tip").write_bytes(first["ledger.tip"])
    with pytest.raises(LedgerRolledBack, match="differs from the one in"):
        Ledger(ledger.path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "spend", "epsilon": 998.0, "round": 9}, "more than the cap"),
        ({"kind": "spend", "epsilon": 1.0, "round": 2}, "a second time"),
        ({"kind": "spend", "epsilon": -1.0, "round": 9}, "invalid epsilon -1.0"),
        ({"kind": "spend", "epsilon": 1, "round": 9}, "invalid epsilon 1"),
        ({"kind": "spend", "epsilon": 1.0, "round": 9, "line": 4}, "wrong place"),
        ({"kind": "cap", "max_epsilon": 1001.0}, "raises the cap"),
        ({"kind": "heading", "max_epsilon": 1001.0}, "wrong place"),
        ({"kind": "gift"}, "unknown kind"),
        ({}, "lacks a field"),
    ],
)
def test_lines_that_no_ledger_writes(tmp_path, fields, words):
    """Sealed rightly, by whoever knows how; still refused, once the tip knows them."""
    ledger = small_ledger(tmp_path)
    past = ledger._files._history
    words_too = {"task": "digits", "scheme": "", "purpose": "", "time": ""}
    line = history.sealed({"line": 5, **words_too, **fields}, past.digest)
    ledger.path.write_bytes(ledger.path.read_bytes() + line)
    past.lines, past.digest = 5, history.unsealed(line, past.digest)[1]
    (tmp_path / "ledger.tip").write_bytes(history.tip_line(past))
    with pytest.raises(LedgerDamaged, match=words):
        Ledger(ledger.path)
