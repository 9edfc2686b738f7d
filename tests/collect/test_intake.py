"""One transaction: who gets a slot, and whose report fills it."""

import contextlib
from collections import Counter

import pytest
from devices import at_once, new_ticket

from sqsgd.federation.collect import intake
from sqsgd.federation.collect.database import Conflict, open_database
from sqsgd.federation.collect.intake import (
    Accepted,
    Granted,
    Join,
    Probe,
    Rejection,
    Report,
    free_expired,
    new_round,
    stage,
)
from sqsgd.federation.collect.rounds import end_study, tick

FIRST, AGAIN = Accepted(round=0, again=False), Accepted(round=0, again=True)


def code(given):
    assert isinstance(given, Rejection), given
    return given.code


def expire(asking):
    """All tickets are late."""
    asking.shift += asking.study.ticket_seconds + 61
    return free_expired(asking.database, stage(asking.database), asking.database.now())


def test_a_request_repeated_has_the_same_answer(asking):
    ticket = new_ticket()[:32]
    first, second = asking.join(ticket, "a" * 32), asking.join(ticket, "a" * 32)
    assert (first.round, first.slot) == (second.round, second.slot)
    message = asking.message(first)
    report = Report(ticket=ticket, message=message)
    assert asking(report) == [FIRST]
    assert asking(report, report) == [AGAIN] * 2
    assert code(asking.join(ticket, "a" * 32)) == "slot-taken"
    assert code(asking(Report(ticket=ticket, message=bytes(len(message))))[0]) == "slot-taken"
    assert asking(Probe()) == [AGAIN]


def test_requests_repeated_within_a_transaction(asking):
    ticket, invitation = new_ticket()[:32], "b" * 32
    join = Join(ticket=ticket, invitation=invitation)
    one, two, stolen = asking(join, join, Join(ticket=new_ticket()[:32], invitation=invitation))
    assert one == two
    assert code(stolen) == code(asking.join(invitation=invitation)) == "invitation-used"
    message = other = asking.message(one)
    while other == message:
        other = asking.message(one)
    report, second = Report(ticket=ticket, message=message), Report(ticket=ticket, message=other)
    first, again, busy = asking(report, report, second)
    assert first == again == FIRST
    assert code(busy) == "busy"
    assert code(asking(second)[0]) == "slot-taken"


def test_an_invitation_is_not_used_up_where_there_is_no_slot(asking):
    asking.joined(asking.study.slots)
    assert code(asking.join(invitation="d" * 32)) == "no-slot"
    assert expire(asking) == asking.study.slots
    assert isinstance(asking.join(invitation="d" * 32), Granted)


def test_a_malformed_report_leaves_the_slot_to_its_device_and_hurts_no_neighbour(asking):
    _, (report, neighbour, foreign) = asking.joined(3)
    message = report.message
    damaged = message[:-1] + bytes([message[-1] ^ 1])
    for wrong in (damaged, message[:-1], b"", b"\2" + message[1:], neighbour.message):
        (given,) = asking(Report(ticket=report.ticket, message=wrong))
        assert code(given) == "malformed"
    wrong, right = asking(Report(ticket=foreign.ticket, message=bytes(len(message))), neighbour)
    assert (code(wrong), right) == ("malformed", FIRST)
    assert asking(report) == [FIRST]


def test_a_late_device(asking):
    (_, second), (early, late) = asking.joined(2)
    expire(asking)
    # Nobody took its slot: the report counts, and the place may be had again.
    assert asking(early) == [FIRST]
    again = asking.join(late.ticket)
    assert (again.slot, again.seconds) == (second.slot, asking.study.ticket_seconds)
    expire(asking)
    assert code(asking.join(late.ticket)) == "unknown-ticket"  # a place is kept once, not for ever
    asking.joined(asking.study.slots - 1)
    assert code(asking(late)[0]) == "unknown-ticket"


def test_nobody_joins_when_too_little_time_is_left(asking):
    _, (early,) = asking.joined(1)
    asking.shift += asking.study.round_seconds - asking.study.ticket_seconds + 1
    assert code(asking.join()) == "no-slot"
    assert code(asking.join(early.ticket)) == "no-slot"  # nor is a ticket renewed for longer than the round
    assert asking(early) == [FIRST]


def test_no_longer_than_a_round_is_promised(asking):
    """The end of a ticket is rounded up to a minute; what a device is told is not."""
    ticket = new_ticket()[:32]
    asking.shift += asking.study.round_seconds - asking.study.ticket_seconds - 5
    asking.join(ticket)
    assert asking.join(ticket).seconds <= asking.study.ticket_seconds
    asking.shift += asking.study.ticket_seconds
    assert asking.join(ticket).seconds <= stage(asking.database).deadline - asking.database.now() + 1
    (expires,) = asking.database.read("SELECT expires FROM slots WHERE expires IS NOT NULL")[0]
    assert expires % 60 == 0


def test_after_the_round(asking):
    _, reports = asking.joined(asking.study.slots)
    asking(*reports[: asking.study.fewest])
    asking.database.write("UPDATE study SET state = 'closing'")
    assert code(asking(reports[-1])[0]) == "round-over"
    assert code(asking.join(reports[-1].ticket)) == "round-over"
    assert code(asking.join()) == "no-slot"
    assert tick(asking.database, asking.study)  # also if the worker that closed the round has died
    assert stage(asking.database).round == 1
    assert asking(reports[0]) == [AGAIN]
    assert code(asking(reports[-1])[0]) == "unknown-ticket"  # nothing is kept of those who did not report
    kept = asking.database.read("SELECT expires, ticket FROM slots WHERE round = 0 AND report IS NULL")
    assert set(kept) == {(None, None)}
    end_study(asking.database, asking.study)
    assert code(asking(reports[-1])[0]) == code(asking.join()) == "closed"


def test_an_open_study_has_a_rate(asking_of, url):
    asking = asking_of(url, admission="open", joins_per_minute=3, users=30)
    given = asking(*(Join(ticket=new_ticket()[:32]) for _ in range(5)))
    assert [isinstance(each, Granted) for each in given] == [True] * 3 + [False] * 2
    assert code(given[-1]) == "too-many"
    assert 0 < given[-1].seconds <= 60
    asking.shift = 60
    assert isinstance(asking(Join(ticket=new_ticket()[:32]))[0], Granted)


def test_nothing_links_an_invitation_to_a_slot(asking):
    """No column in common, and no times; test_stepping.py looks at the order of rows on the disk."""
    pairs = [(new_ticket()[:32], new_ticket()[:32]) for _ in range(asking.study.slots)]
    for ticket, invitation in pairs:
        granted = asking.join(ticket, invitation)
        asking(Report(ticket=ticket, message=asking.message(granted)))
    rows = asking.database.read("SELECT * FROM slots WHERE round = 0")
    assert {(row[2], row[4]) for row in rows} == {(None, None)}  # neither a place in the order nor a time
    assert not {invitation for _, invitation in pairs} & {value for row in rows for value in row}
    assert {len(row) for row in asking.database.read("SELECT * FROM invitations")} == {1}
    end_study(asking.database, asking.study)
    assert asking.database.read("SELECT * FROM invitations") == []
    assert asking.database.read("SELECT 1 FROM slots WHERE ticket IS NOT NULL") == []


@pytest.fixture
def drawing(asking_of):
    made = asking_of(admission="open", joins_per_minute=10**6)
    made.database.write("PRAGMA synchronous = OFF")  # many transactions, none of which has to last
    return made


def chi_square(asking, given_up=False, tries=500):
    """How far the slots of joining devices are from uniform, over many rounds of four slots.

    ``given_up``: two devices come before the one that counts; one of them is late by then.
    """
    counts, start = Counter(), asking.shift
    for _ in range(tries):
        with asking.database.transaction():
            asking.database.write("DELETE FROM slots")
            new_round(asking.database, 0, 4)
        asking.shift = start
        free = [0, 1, 2, 3]
        if given_up:
            late = asking.join().slot
            asking.shift += 120
            other = asking.join().slot
            asking.shift += asking.study.ticket_seconds - 59
            assert free_expired(asking.database, stage(asking.database), asking.database.now()) == 1
            free = [late, *({0, 1, 2, 3} - {late, other})]
        counts[free.index(asking.join().slot)] += 1
    expected = tries / len(free)
    return sum((counts[kind] - expected) ** 2 / expected for kind in range(len(free)))


def test_slots_are_drawn_uniformly(drawing, monkeypatch):
    """Chi-square with 3 degrees of freedom: 45 is exceeded once in a billion times."""
    assert chi_square(drawing) < 45
    with monkeypatch.context() as broken:  # slots in their order
        broken.setattr(intake, "FREE", intake.FREE.replace("ORDER BY draw", "ORDER BY slot"))
        assert chi_square(drawing, tries=50) > 45
    with monkeypatch.context() as broken:  # a predictable draw
        broken.setattr(intake.os, "urandom", bytes)
        assert chi_square(drawing, tries=50) > 45


def test_a_slot_that_was_given_up_is_as_likely_as_the_others(drawing, monkeypatch):
    """Otherwise whoever joins and does not report knows the slot of the next device.

    Chi-square with 2 degrees of freedom: 42 is exceeded once in a billion times.
    """
    assert chi_square(drawing, given_up=True) < 42
    monkeypatch.setattr(intake, "WAITING", f"{intake.WAITING} AND 1 = 0")  # those keep their places
    assert chi_square(drawing, given_up=True) > 42


def test_connections_race_for_one_invitation(asking_of, url):
    """Eight at once, with one invitation: one is admitted, the others are told."""
    asking = asking_of(url, users=24)

    def one(_):
        join = Join(ticket=new_ticket()[:32], invitation="e" * 32)
        with contextlib.closing(open_database(asking.folder)) as database:
            while True:
                with contextlib.suppress(Conflict):  # the transaction is repeated, as GroupCommit does
                    return asking(join, database=database)[0]

    given = at_once(8, one)
    assert sum(isinstance(each, Granted) for each in given) == 1
    assert [code(each) for each in given if not isinstance(each, Granted)] == ["invitation-used"] * 7


def test_connections_race_to_fill_one_slot(asking):
    """Different reports with one ticket at once: one counts, and only its sender is told so."""
    ticket = new_ticket()[:32]
    granted, made = asking.join(ticket), set()
    while len(made) < 6:
        made.add(asking.message(granted))
    messages = list(made)

    def one(i):
        with contextlib.closing(open_database(asking.folder)) as database:
            return asking(Report(ticket=ticket, message=messages[i]), database=database)[0]

    given = at_once(6, one)
    ((kept,),) = asking.database.read("SELECT report FROM slots WHERE report IS NOT NULL")
    assert [m for m, each in zip(messages, given, strict=True) if isinstance(each, Accepted)] == [bytes(kept)]
