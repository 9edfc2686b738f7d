"""One transaction: whose token is spent, which symbols are counted, and who gets tokens."""

import contextlib
import secrets
from collections import Counter

import pytest
from devices import at_once

from sqsgd.federation.collect.database import Conflict, open_database
from sqsgd.federation.collect.intake import Issue, Probe, Rejection, counts, read_report, received, stage
from sqsgd.federation.collect.rounds import end_study, tick


def code(given):
    assert isinstance(given, Rejection), given
    return given.code


def persistent(asking, request):
    """The answer on a connection of its own; a conflict is repeated, as the service does."""
    with contextlib.closing(open_database(asking.folder)) as database:
        while True:
            with contextlib.suppress(Conflict):
                return asking(request, database=database)[0]


def test_a_token_is_spent_once(asking):
    report = asking.report()
    other = asking.report()._replace(token=report.token)
    assert asking(report) == [None]
    assert [code(each) for each in asking(report, other)] == ["token-spent"] * 2
    assert received(asking.database, asking.study, 0) == 1
    first = asking.report()
    given, second = asking(first, asking.report()._replace(token=first.token))  # both in one transaction
    assert (given, code(second)) == (None, "token-spent")
    assert received(asking.database, asking.study, 0) == 2
    assert asking(Probe()) == [None]


def test_no_row_holds_a_report(asking_of, url):
    """Of a report there are its token, which nobody can tie to a device, and larger counts."""
    asking = asking_of(url, users=30)
    reports = [asking.report() for _ in range(8)]
    asking(*reports)
    tables = "study", "rounds", "counts", "spent", "invitations", "refusals", "minutes", "gateway"
    rows = {table: asking.database.read(f"SELECT * FROM {table}") for table in tables}  # noqa: S608
    assert sorted(rows["spent"]) == sorted((report.token,) for report in reports)
    expected = Counter(code for report in reports for code in report.codes)
    assert sorted(rows["counts"]) == [(0, code, count) for code, count in sorted(expected.items())]
    used = {name for name, found in rows.items() if found}
    assert used == {"study", "rounds", "counts", "spent", "gateway"}
    assert counts(asking.database, asking.study, 0).sum() == 8


def test_malformed_reports_are_refused_before_the_transaction(asking):
    message = asking.message()
    for wrong in (message[:-1] + bytes([message[-1] ^ 1]), message[:-1], b"", asking.message(round=1)):
        with pytest.raises(Rejection) as caught:
            read_report(asking.study, "a" * 64, 0, wrong)
        assert caught.value.code == "malformed"


def test_only_the_open_round_counts(asking):
    early, late = asking.report(1), asking.report(0)
    assert code(asking(early)[0]) == "round-not-open"
    asking.fill()
    assert tick(asking.database, asking.study)
    assert code(asking(late)[0]) == "round-over"
    assert asking(early) == [None]  # a refusal spent nothing
    end_study(asking.database, asking.study)
    assert code(asking(asking.report(1))[0]) == "closed"
    assert code(asking(early)[0]) == "token-spent"  # a device whose answer was lost learns that it counts


def test_while_a_round_is_averaged(asking):
    first = asking.report()
    asking(first)
    asking.database.write("UPDATE study SET state = 'closing'")
    assert code(asking(asking.report())[0]) == "round-over"
    assert code(asking(first)[0]) == "token-spent"


def test_drawn_rounds_follow_the_schedule(asking_of, url):
    asking = asking_of(url, visits="drawn", round_seconds=100.0, begins=2_000_000_000, fewest=1)
    asking.shift = 2_000_000_000 - asking.database.now() - 50
    given = asking(asking.report())[0]
    assert code(given) == "round-not-open"
    assert 40 < given.seconds < 51
    asking.shift += 60
    asking.fill(count=asking.study.expected + 1)  # more than expected: no round ends before its time
    assert not tick(asking.database, asking.study)
    assert 180 < asking(asking.report(2))[0].seconds < 191
    asking.shift += 100
    assert code(asking(asking.report(0))[0]) == "round-over"  # also before a worker acts on it
    assert tick(asking.database, asking.study)
    assert asking(asking.report(1)) == [None]
    assert stage(asking.database).deadline == 2_000_000_200


def test_connections_race_to_spend_one_token(asking):
    """Different reports with one token at once: one counts, and only its sender is told so."""
    token = secrets.token_hex(32)
    reports = [asking.report()._replace(token=token) for _ in range(6)]
    given = at_once(6, lambda i: persistent(asking, reports[i]))
    told = [each if each is None else code(each) for each in sorted(given, key=bool)]
    assert told == [None] + ["token-spent"] * 5
    (winner,) = (report for report, each in zip(reports, given, strict=True) if each is None)
    assert counts(asking.database, asking.study, 0)[list(winner.codes)].tolist() == [1]
    assert received(asking.database, asking.study, 0) == 1


def test_crossing_requests_do_not_deadlock(asking_of, url):
    """The same tokens, invitations and codes in opposite orders, many at a time."""
    asking = asking_of(url, users=900, admission="invited")
    reports = [asking.report() for _ in range(40)]
    issues = [Issue(secrets.token_hex(16), "x") for _ in range(40)]

    def one(i):
        order = [*reports, *issues] if i % 2 else [*reversed(issues), *reversed(reports)]
        with contextlib.closing(open_database(asking.folder)) as database:
            return asking(*order, database=database)  # a deadlock would be a Conflict

    given = at_once(4, one)
    assert sum(each is None for answers in given for each in answers) == 40 + 4 * 40
    assert received(asking.database, asking.study, 0) == 40


def test_an_invitation_signs_one_set_of_blinded_messages(asking):
    first, other = Issue("a" * 32, "1"), Issue("a" * 32, "2")
    assert asking(first, first) == [None, None]
    assert asking(first) == [None]  # the answer was lost
    assert code(asking(other)[0]) == "invitation-used"
    one, two = asking(Issue("b" * 32, "1"), Issue("b" * 32, "2"))
    assert {one and one.code, two and two.code} == {None, "invitation-used"}
    end_study(asking.database, asking.study)
    assert code(asking(first)[0]) == "closed"


def test_connections_race_for_one_invitation(asking):
    """Eight at once with one invitation: one is answered, the others are told."""
    given = at_once(8, lambda i: persistent(asking, Issue("e" * 32, f"{i}")))
    assert sorted(each.code if each else "" for each in given) == [""] + ["invitation-used"] * 7


def test_postgresql_logs_no_invitation(asking_of, new_url, postgres_server):
    """A conflict of rows would be logged with the row and the time."""
    asking = asking_of(new_url)
    at_once(6, lambda i: persistent(asking, Issue("9e" * 16, f"{i}")))
    token = asking.report().token
    at_once(6, lambda _: persistent(asking, asking.report()._replace(token=token)))
    text = (postgres_server.folder / "log").read_text()
    assert "9e" * 16 not in text
    assert token not in text


def test_the_same_device_at_both_workers_gets_the_same_answer(asking):
    given = at_once(8, lambda _: persistent(asking, Issue("f" * 32, "the same")))
    assert given == [None] * 8


def test_nobody_joins_when_rounds_have_begun(asking_of, url):
    """Its draw would be among the rounds that are left. A lost answer is still given again."""
    asking = asking_of(url, visits="drawn", round_seconds=100.0)
    early, late = Issue("a" * 32, "1"), Issue("b" * 32, "2")
    assert asking(early) == [None]
    asking.shift = asking.study.begins - asking.database.now() + 1
    repeated, refused = asking(early, late)
    assert (repeated, code(refused)) == (None, "closed")
    assert code(asking(early._replace(request="3"))[0]) == "invitation-used"
    assert asking.database.read("SELECT number FROM invitations") == [("a" * 32,)]


def test_an_open_study_has_a_rate(asking_of, url):
    asking = asking_of(url, admission="open", tokens_per_minute=3, users=30)
    given = asking(*(Issue(secrets.token_hex(16), "x") for _ in range(5)))
    assert sorted(each.code if each else "" for each in given) == ["", "", "", "too-many", "too-many"]
    assert all(0 < each.seconds <= 60 for each in given if each)
    asking.shift = 60
    assert asking(Issue(secrets.token_hex(16), "x")) == [None]
