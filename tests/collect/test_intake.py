"""One transaction: who gets a slot, and whose report fills it."""

import threading
from collections import Counter

import numpy as np
import pytest
from devices import make, new_ticket

from sqsgd import secure_rng
from sqsgd.federation.collect import intake
from sqsgd.federation.collect.database import Conflict, open_database
from sqsgd.federation.collect.intake import (
    Accepted,
    Granted,
    Join,
    Probe,
    Rejection,
    Report,
    answer,
    free_expired,
    new_round,
    stage,
    task_of,
)
from sqsgd.federation.collect.rounds import confirm_clock, end_study, tick


class Asking:
    """A study, its database, and requests of devices."""

    def __init__(self, folder, url="", **values):
        self.study = make(folder, url, **values)
        self.folder, self.database = folder, open_database(folder)
        self.shift = 0.0
        now = self.database.now
        self.database.now = lambda: now() + self.shift  # time passes when the test says so

    def wait(self, seconds):
        """Time passes while workers run."""
        self.shift += seconds
        confirm_clock(self.database)

    def __call__(self, *requests):
        return answer(self.database, self.study, requests, Counter())

    def join(self, ticket=None, invitation=None):
        ticket = ticket or new_ticket()[:32]
        (given,) = self(Join(ticket=ticket, invitation=invitation or new_ticket()[:32]))
        return given

    def message(self, granted, value=1.0):
        x = np.full(self.study.dim, value, np.float32)
        return self.study.made_scheme.encode(x, task_of(self.study, granted, granted.slot), secure_rng())

    def refusals(self):
        return dict(self.database.read("SELECT code, count FROM refusals WHERE count > 0"))


@pytest.fixture
def asking(tmp_path, url):
    made = Asking(tmp_path / "study", url)
    yield made
    made.database.close()


def code(given):
    assert isinstance(given, Rejection), given
    return given.code


def test_a_request_repeated_has_the_same_answer(asking):
    ticket = new_ticket()[:32]
    first, second = asking.join(ticket, "a" * 32), asking.join(ticket, "a" * 32)
    assert (first.round, first.slot) == (second.round, second.slot)
    message = asking.message(first)
    report = Report(ticket=ticket, message=message)
    assert asking(report) == [Accepted(round=0, again=False)]
    assert asking(report, report) == [Accepted(round=0, again=True)] * 2
    assert code(asking.join(ticket, "a" * 32)) == "slot-taken"
    other = Report(ticket=ticket, message=bytes(len(message)))
    assert code(asking(other)[0]) == "slot-taken"
    assert asking.refusals() == {"slot-taken": 2}


def test_requests_repeated_within_a_transaction(asking):
    ticket, invitation = new_ticket()[:32], "b" * 32
    join = Join(ticket=ticket, invitation=invitation)
    thief = Join(ticket=new_ticket()[:32], invitation=invitation)
    one, two, stolen = asking(join, join, thief)
    assert one == two
    assert code(stolen) == "invitation-used"
    message, other = asking.message(one), asking.message(one)
    while other == message:
        other = asking.message(one)
    report, second = Report(ticket=ticket, message=message), Report(ticket=ticket, message=other)
    first, again, busy = asking(report, report, second)
    assert first == again == Accepted(round=0, again=False)
    assert code(busy) == "busy"
    assert code(asking(second)[0]) == "slot-taken"


def test_an_invitation_admits_one_device(asking):
    assert isinstance(asking.join(invitation="c" * 32), Granted)
    assert code(asking.join(invitation="c" * 32)) == "invitation-used"


def test_an_invitation_is_not_used_up_where_there_is_no_slot(asking):
    for _ in range(asking.study.slots):
        assert isinstance(asking.join(), Granted)
    assert code(asking.join(invitation="d" * 32)) == "no-slot"
    asking.wait(asking.study.ticket_seconds + 61)
    assert free_expired(asking.database, stage(asking.database), asking.database.now()) == asking.study.slots
    assert isinstance(asking.join(invitation="d" * 32), Granted)


def test_a_malformed_report_leaves_the_slot_to_its_device(asking):
    ticket = new_ticket()[:32]
    granted = asking.join(ticket)
    message = asking.message(granted)
    damaged = message[:-1] + bytes([message[-1] ^ 1])
    for wrong in (damaged, message[:-1], b"", b"\2" + message[1:]):
        (given,) = asking(Report(ticket=ticket, message=wrong))
        assert code(given) == "malformed"
    assert asking(Report(ticket=ticket, message=message)) == [Accepted(round=0, again=False)]
    assert asking.refusals() == {"malformed": 4}


def test_a_malformed_report_does_not_hurt_its_neighbours(asking):
    tickets = [new_ticket()[:32] for _ in range(3)]
    granted = [asking.join(ticket) for ticket in tickets]
    messages = [asking.message(each) for each in granted]
    messages[1] = bytes(len(messages[1]))
    given = asking(*(Report(ticket=t, message=m) for t, m in zip(tickets, messages, strict=True)))
    assert [isinstance(each, Accepted) for each in given] == [True, False, True]


def test_a_report_for_another_slot_is_malformed(asking):
    tickets = [new_ticket()[:32] for _ in range(2)]
    first, _ = [asking.join(ticket) for ticket in tickets]
    (given,) = asking(Report(ticket=tickets[1], message=asking.message(first)))
    assert code(given) == "malformed"


def test_a_late_device(asking):
    early, late = new_ticket()[:32], new_ticket()[:32]
    first, second = asking.join(early), asking.join(late)
    asking.wait(asking.study.ticket_seconds + 61)
    free_expired(asking.database, stage(asking.database), asking.database.now())
    # Nobody took its slot: the report counts, and the place may be had again.
    assert asking(Report(ticket=early, message=asking.message(first))) == [Accepted(round=0, again=False)]
    again = asking.join(late)
    assert (again.slot, again.seconds) == (second.slot, asking.study.ticket_seconds)
    asking.wait(asking.study.ticket_seconds + 61)
    free_expired(asking.database, stage(asking.database), asking.database.now())
    assert code(asking.join(late)) == "unknown-ticket"  # a place is kept for a device once, not for ever
    others = [asking.join() for _ in range(asking.study.slots - 1)]
    assert all(isinstance(other, Granted) for other in others)
    (given,) = asking(Report(ticket=late, message=asking.message(second)))
    assert code(given) == "unknown-ticket"


def test_nobody_joins_when_too_little_time_is_left(asking):
    early = new_ticket()[:32]
    granted = asking.join(early)
    asking.wait(asking.study.round_seconds - asking.study.ticket_seconds + 1)
    assert code(asking.join()) == "no-slot"
    assert code(asking.join(early)) == "no-slot"  # nor is a ticket renewed for longer than the round
    assert asking(Report(ticket=early, message=asking.message(granted))) == [Accepted(round=0, again=False)]


def test_no_longer_than_a_round_is_promised(asking):
    """The end of a ticket is rounded up to a minute; what a device is told is not."""
    ticket = new_ticket()[:32]
    asking.wait(asking.study.round_seconds - asking.study.ticket_seconds - 5)
    asking.join(ticket)
    assert asking.join(ticket).seconds <= asking.study.ticket_seconds
    asking.wait(asking.study.ticket_seconds)
    assert asking.join(ticket).seconds <= stage(asking.database).deadline - asking.database.now() + 1
    (expires,) = asking.database.read("SELECT expires FROM slots WHERE expires IS NOT NULL")[0]
    assert expires % 60 == 0


def test_after_the_round(asking):
    tickets = [new_ticket()[:32] for _ in range(asking.study.slots)]
    granted = [asking.join(ticket) for ticket in tickets]
    reports = [
        Report(ticket=ticket, message=asking.message(each))
        for ticket, each in zip(tickets, granted, strict=True)
    ]
    asking(*reports[: asking.study.fewest])
    asking.database.write("UPDATE study SET state = 'closing'")
    assert code(asking(reports[-1])[0]) == "round-over"
    assert code(asking.join(tickets[-1])) == "round-over"
    assert tick(asking.database, asking.study)
    assert stage(asking.database).round == 1
    assert asking(reports[0]) == [Accepted(round=0, again=True)]
    assert code(asking(reports[-1])[0]) == "unknown-ticket"  # nothing is kept of those who did not report
    kept = asking.database.read(
        "SELECT expires, ticket IS NULL FROM slots WHERE round = 0 AND report IS NULL"
    )
    assert {(expires, bool(unknown)) for expires, unknown in kept} == {(None, True)}
    end_study(asking.database, asking.study)
    assert code(asking(reports[-1])[0]) == "closed"
    assert code(asking.join()) == "closed"


def test_an_open_study_has_a_rate(tmp_path, url):
    asking = Asking(tmp_path / "study", url, admission="open", joins_per_minute=3, users=30)
    given = asking(*(Join(ticket=new_ticket()[:32]) for _ in range(5)))
    assert [isinstance(each, Granted) for each in given] == [True] * 3 + [False] * 2
    assert code(given[-1]) == "too-many"
    assert 0 < given[-1].seconds <= 60
    asking.shift = 60
    assert isinstance(asking(Join(ticket=new_ticket()[:32]))[0], Granted)
    asking.database.close()


def test_nothing_links_an_invitation_to_a_slot(asking):
    """No column in common, and no times; test_stepping.py looks at the order of rows on the disk."""
    pairs = [(new_ticket()[:32], new_ticket()[:32]) for _ in range(asking.study.slots)]
    for ticket, invitation in pairs:
        granted = asking.join(ticket, invitation)
        asking(Report(ticket=ticket, message=asking.message(granted)))
    rows = asking.database.read("SELECT * FROM slots WHERE round = 0")
    assert {(row[2], row[4]) for row in rows} == {(None, None)}  # neither a place in the order nor a time
    assert not {invitation for _, invitation in pairs} & {value for row in rows for value in row}
    used = asking.database.read("SELECT * FROM invitations")
    assert {len(row) for row in used} == {1}
    end_study(asking.database, asking.study)
    assert asking.database.read("SELECT * FROM invitations") == []
    assert asking.database.read("SELECT 1 FROM slots WHERE ticket IS NOT NULL") == []


@pytest.fixture
def drawing(tmp_path):
    made = Asking(tmp_path / "study", admission="open", joins_per_minute=10**6)
    made.database.write("PRAGMA synchronous = OFF")  # many transactions, none of which has to last
    yield made
    made.database.close()


def chi_square(asking, tries, given_up):
    """How far the slots of joining devices are from uniform, over many rounds of four slots.

    ``given_up``: two devices come before the one that counts; one of them is late by then.
    """
    counts, start = Counter(), asking.shift
    for _ in range(tries):
        with asking.database.transaction():
            asking.database.write("DELETE FROM slots")
            new_round(asking.database, 0, 4)
        asking.shift = start
        if given_up:
            late = asking.join().slot
            asking.shift += 120
            other = asking.join().slot
            asking.shift += asking.study.ticket_seconds - 59
            assert free_expired(asking.database, stage(asking.database), asking.database.now()) == 1
            free = [late, *({0, 1, 2, 3} - {late, other})]
            counts[free.index(asking.join().slot)] += 1
        else:
            counts[asking.join().slot] += 1
    kinds = 3 if given_up else 4
    return sum((counts[kind] - tries / kinds) ** 2 / (tries / kinds) for kind in range(kinds))


@pytest.fixture
def by_number(monkeypatch):
    """A broken collector, which gives out slots in their order."""
    monkeypatch.setattr(intake, "FREE", intake.FREE.replace("ORDER BY draw", "ORDER BY slot"))


def test_slots_are_drawn_uniformly(drawing):
    """Chi-square with 3 degrees of freedom: 45 is exceeded once in a billion times."""
    assert chi_square(drawing, 500, given_up=False) < 45


def test_slots_in_their_order_are_seen_not_to_be_uniform(drawing, by_number):
    assert chi_square(drawing, 500, given_up=False) > 45


def test_slots_of_a_predictable_draw_are_seen_not_to_be_uniform(drawing, monkeypatch):
    monkeypatch.setattr("sqsgd.federation.collect.intake.os.urandom", bytes)
    assert chi_square(drawing, 500, given_up=False) > 45


def test_a_slot_that_was_given_up_is_as_likely_as_the_others(drawing, monkeypatch):
    """Otherwise whoever joins and does not report knows the slot of the next device.

    Chi-square with 2 degrees of freedom: 42 is exceeded once in a billion times.
    """
    assert chi_square(drawing, 500, given_up=True) < 42
    monkeypatch.setattr(intake, "WAITING", f"{intake.WAITING} AND 1 = 0")  # those keep their places
    assert chi_square(drawing, 500, given_up=True) > 42


def test_connections_race_for_one_invitation(tmp_path, url):
    """Eight at once, with one invitation: one is admitted, the others are told."""
    asking = Asking(tmp_path / "study", url, users=24)
    start, given = threading.Barrier(8), []

    def one():
        database = open_database(asking.folder)
        start.wait()
        for _ in range(20):
            try:
                given.extend(
                    answer(
                        database,
                        asking.study,
                        [Join(ticket=new_ticket()[:32], invitation="e" * 32)],
                        Counter(),
                    )
                )
                break
            except Conflict:  # the transaction is repeated, as GroupCommit does
                continue
        database.close()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(each, Granted) for each in given) == 1
    assert [code(each) for each in given if not isinstance(each, Granted)] == ["invitation-used"] * 7
    asking.database.close()


def test_connections_race_to_fill_one_slot(tmp_path, url):
    """Different reports with one ticket at once: one counts, and only its sender is told so."""
    asking = Asking(tmp_path / "study", url)
    ticket = new_ticket()[:32]
    granted = asking.join(ticket)
    messages = set()
    while len(messages) < 6:
        messages.add(asking.message(granted))
    start, given = threading.Barrier(6), {}

    def one(message):
        database = open_database(asking.folder)
        start.wait()
        (given[message],) = answer(
            database, asking.study, [Report(ticket=ticket, message=message)], Counter()
        )
        database.close()

    threads = [threading.Thread(target=one, args=(message,)) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = [message for message, each in given.items() if isinstance(each, Accepted)]
    (kept,) = asking.database.read("SELECT report FROM slots WHERE report IS NOT NULL")
    assert [bytes(kept[0])] == accepted
    asking.database.close()


def test_a_probe_changes_nothing(asking):
    assert asking(Probe()) == [Accepted(round=0, again=True)]
    assert asking.refusals() == {}
