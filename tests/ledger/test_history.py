"""The lines of a ledger: sealed each to the one before, taken in whole or not at all."""

import copy
import io

import pytest
from spending import small_ledger

from sqsgd.privacy import ledger_files as history
from sqsgd.privacy import ledger_files as tips
from sqsgd.privacy.ledger import Ledger, LedgerDamaged


@pytest.mark.parametrize("content", [b"hello\n", b"\x00\x01\n" * 9, b"no end"])
def test_another_file_is_called_that(tmp_path, content):
    (tmp_path / "notes").write_bytes(content)
    with pytest.raises(LedgerDamaged, match="is not a ledger's heading: this is another file"):
        Ledger(tmp_path / "notes")


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
    (tmp_path / "ledger.tip").write_bytes(tips.tip_line(past))
    with pytest.raises(LedgerDamaged, match=words):
        Ledger(ledger.path)


def heading(cap=10.0, **more):
    names = {"ledger": "name", "path": "/here", "owner": "Ann", "witness": None}
    return {"kind": "heading", "line": 1, "format": history.FORMAT, "max_epsilon": cap, **names, **more}


def spend(line, epsilon=1.0, round=0, **more):
    words = {"task": "digits", "scheme": "sqsgd", "purpose": "", "time": ""}
    return {"kind": "spend", "line": line, "epsilon": epsilon, "round": round, **words, **more}


def written(*rows):
    """Lines as a ledger writes them, each after the one before."""
    lines, digest = [], history.START
    for fields in rows:
        lines.append(history.sealed(fields, digest))
        digest = history.unsealed(lines[-1], digest)[1]
    return lines


def test_a_line_is_read_only_after_the_line_that_it_was_written_after():
    first, second = written(heading(owner="Zoë \U0001f600"), spend(2))
    fields, digest = history.unsealed(first, history.START)
    assert fields == heading(owner="Zoë \U0001f600")
    assert history.unsealed(second, digest)[0] == spend(2)
    assert first.isascii()
    for line, before in ((second, history.START), (first, digest), (second.replace(b"1.0", b"0.1"), digest)):
        with pytest.raises(ValueError, match="its digest does not match"):
            history.unsealed(line, before)
    with pytest.raises(ValueError, match="is truncated or has no end"):
        history.unsealed(first[:-1], history.START)


def test_what_cannot_be_read_back_is_not_written():
    with pytest.raises(ValueError, match=r"a line of \d+ bytes is too long: the limit is 8192"):
        history.sealed(spend(2, task="x" * history.MAX_LINE), history.START)
    with pytest.raises(ValueError, match="not JSON compliant"):
        history.sealed(spend(2, epsilon=float("nan")), history.START)


@pytest.mark.parametrize(
    "wrong",
    [
        spend(3, round=0),
        spend(3, epsilon=9.5, round=1),
        spend(4, round=1),
        spend(3, epsilon=None, round=1),
        {"kind": "cap", "line": 3, "max_epsilon": 10.5},
        {"kind": "cap", "line": 3, "max_epsilon": 5},
        {"kind": "spend", "line": 3, "epsilon": 1.0},
        heading(),
        {"kind": "gift", "line": 3},
    ],
)
def test_a_line_is_taken_in_whole_or_not_at_all(wrong):
    first, second, bad = written(heading(), spend(2), wrong)
    past = history.History()
    past.add(first)
    past.add(second)
    before = copy.deepcopy(vars(past))
    with pytest.raises((ValueError, KeyError)):
        past.add(bad)
    assert vars(past) == before
    past.add(history.sealed(spend(3, round=1), past.digest))
    assert (past.lines, past.spent, past.cap) == (3, 2, 10)


def test_reading_goes_on_where_it_stopped():
    """After a line that is no line, once it is mended; what was taken in is not read again."""
    lines = written(heading(), spend(2), {"kind": "cap", "line": 3, "max_epsilon": 3.0}, spend(4, round=1))
    past = history.History()
    assert past.read(io.BytesIO(b"".join(lines[:2]) + lines[2][:-5])) == "is truncated or has no end"
    assert (past.lines, past.length) == (2, len(lines[0] + lines[1]))
    assert past.read(io.BytesIO(b"\0" * past.length + lines[2] + lines[3])) == ""
    assert (past.lines, past.cap, past.spent) == (4, 3, 2)
    assert [entry.line for entry in past.entries] == [2, 4]
    assert (past.last_length, past.length) == (len(lines[3]), sum(map(len, lines)))
