"""Changed bits, cuts, lines more or less, older copies: every one of them is seen, and refused."""

import os

import pytest
from spending import files_of, pay, put_back, refused, small_ledger

from sqsgd.privacy import ledger_files as history
from sqsgd.privacy.ledger import Ledger, LedgerDamaged, LedgerRolledBack


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


def test_a_line_of_another_ledger(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = small_ledger(tmp_path / "a"), small_ledger(tmp_path / "b")
    lines, others = (each.path.read_bytes().splitlines(keepends=True) for each in (one, other))
    one.path.write_bytes(b"".join([*lines[:2], others[2], lines[3]]))
    assert refused(one.path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:2], r"ends after 2 lines \(\d+ bytes\), but .*ledger\.tip records 4"),
        (lambda lines: [*lines[:2], lines[2][:-9], lines[3]], r"line 3 \(byte \d+\) was changed or does not"),
        (lambda lines: [lines[0].replace(b"1000", b"9000"), *lines[1:]], r"line 1 \(byte 0\) was changed"),
        (lambda lines: [*lines[:3], lines[3][:-1]], r"line 4 \(byte \d+\) is truncated"),
        (lambda lines: [*lines, b"x" * 9000], r"line 5 \(byte \d+\) is truncated or has no end"),
        (lambda lines: [], r"line 1 \(byte 0\) is missing"),
    ],
)
def test_it_says_what_is_wrong_and_where(tmp_path, change, words):
    ledger = small_ledger(tmp_path)
    ledger.path.write_bytes(b"".join(change(ledger.path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(LedgerDamaged, match=words):
        Ledger(ledger.path)


# ---------------------------------------------------------------- older copies


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
