"""What tips see: an older copy, another branch, another ledger."""

from pathlib import Path

import pytest
from spending import files_of, pay, put_back, refused, small_ledger

from sqsgd.privacy.ledger import Ledger, LedgerDamaged, LedgerRolledBack
from sqsgd.privacy.ledger_files import MAX_LINE, History, Tip, check_tips, read_tip, tip_line


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


def test_a_copy_that_is_one_report_older(tmp_path):
    ledger = small_ledger(tmp_path)
    old = files_of(tmp_path)
    pay(ledger, 10)
    new = files_of(tmp_path)
    put_back(tmp_path, {**new, "ledger": old["ledger"]})
    assert refused(ledger.path)
    put_back(tmp_path, {**new, "ledger.tip": old["ledger.tip"]})
    assert Ledger(ledger.path).spent == 4  # as after a crash: nothing is lost


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


PLACE = Path("/somewhere/ledger")


@pytest.fixture
def past(tmp_path):
    """The history of a ledger with three reports: four lines."""
    history = History()
    with small_ledger(tmp_path).path.open("rb") as file:
        assert history.read(file) == ""
    return history


def tip_of(history, **changes):
    found = {"ledger": history.heading["ledger"], "at": "", "lines": history.lines}
    return Tip(**{"path": Path("tip"), **found, "digest": history.digest.decode(), **changes})


def test_a_tip_says_how_far_its_ledger_had_come(tmp_path, past):
    assert read_tip(tmp_path / "none") is None
    tip = read_tip(tmp_path / "ledger.tip")
    assert tip == tip_of(past, path=tmp_path / "ledger.tip", at=str(tmp_path / "ledger"))
    assert (tmp_path / "ledger.tip").read_bytes() == tip_line(past)
    check_tips(PLACE, past, "", 0, [tip])


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"{}\n", b"x" * 9000])
def test_a_damaged_tip_is_none(tmp_path, content):
    (tmp_path / "tip").write_bytes(content)
    with pytest.raises(LedgerDamaged, match="tip is damaged"):
        read_tip(tmp_path / "tip")


def test_a_line_of_the_ledger_is_no_tip(tmp_path):
    """Sealed as a tip is, after nothing, but it does not say what a tip does."""
    ledger = small_ledger(tmp_path)
    (tmp_path / "tip").write_bytes(ledger.path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(LedgerDamaged, match="tip is damaged"):
        read_tip(tmp_path / "tip")


def test_a_tip_may_be_one_line_behind_and_no_more(past):
    one = tip_of(past, lines=3, digest=past.digest_before.decode())
    check_tips(PLACE, past, "", 0, [one, tip_of(past)])
    with pytest.raises(LedgerRolledBack, match=r"tip records 2 lines, but .* has 4 lines"):
        check_tips(PLACE, past, "", 0, [tip_of(past), tip_of(past, lines=2)])
    # Part of a line follows the last: whoever began it had brought the tip up to date before.
    check_tips(PLACE, past, "is cut off", 9, [tip_of(past)])
    with pytest.raises(LedgerRolledBack, match="tip records 3 lines"):
        check_tips(PLACE, past, "is cut off", 9, [one])


def test_a_ledger_may_not_be_behind_any_of_its_tips(past):
    ahead = tip_of(past, lines=5)
    with pytest.raises(LedgerRolledBack, match=r"ends after 4 lines \(\d+ bytes\), but tip records 5"):
        check_tips(PLACE, past, "", 0, [tip_of(past), ahead])
    with pytest.raises(LedgerDamaged, match=r"line 5 \(byte \d+\) was changed"):
        check_tips(PLACE, past, "was changed", 300, [ahead])


def test_more_than_a_line_is_no_crash(past):
    check_tips(PLACE, past, "is cut off", MAX_LINE, [tip_of(past)])
    with pytest.raises(LedgerDamaged, match=r"line 5 .* is cut off"):
        check_tips(PLACE, past, "is cut off", MAX_LINE + 1, [tip_of(past)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ledger": "another"}, "belongs to a ledger other than"),
        ({"digest": "0" * 64}, "line 4 differs from the one in"),
    ],
)
def test_a_tip_is_of_this_ledger_and_of_this_line(past, changes, words):
    with pytest.raises(LedgerRolledBack, match=words):
        check_tips(PLACE, past, "", 0, [tip_of(past, **changes)])
