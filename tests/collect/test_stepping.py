"""A round ends once, with exactly its reports, in the order of slots."""

import dataclasses
import json
import re
import threading

import numpy as np
import pytest
from test_intake import Asking

from sqsgd.federation.collect.database import FILE, open_database
from sqsgd.federation.collect.intake import ENDED, Granted, Report, stage, task_of
from sqsgd.federation.collect.rounds import (
    check_study,
    confirm_clock,
    end_study,
    full_status,
    read_state,
    rounds_done,
    tick,
)
from sqsgd.training import server_step


def fill(asking, count=None):
    """Reports of the current round; returns them as the server's step takes them."""
    made = []
    for _ in range(asking.study.slots if count is None else count):
        ticket = f"{np.random.default_rng().integers(2**62):032x}"
        granted = asking.join(ticket)
        assert isinstance(granted, Granted), granted
        message = asking.message(granted)
        asking(Report(ticket=ticket, message=message))
        made.append((task_of(asking.study, granted, granted.slot), message, 1.0))
    return sorted(made, key=lambda report: report[0].client)


def test_the_step_is_that_of_the_algorithm_bit_for_bit(tmp_path, url):
    asking = Asking(tmp_path / "study", url, optimizer="momentum", users=30)
    state = read_state(asking.database, 0)
    for _ in range(3):
        reports = fill(asking)
        assert tick(asking.database, asking.study)
        state, _ = server_step(asking.study.made_scheme, asking.study, state, reports)
        now = read_state(asking.database, state.round)
        assert now.weights.tobytes() == state.weights.tobytes()
        assert (now.bound, now.optimizer.keys()) == (state.bound, state.optimizer.keys())
    assert stage(asking.database).state == ENDED
    assert not tick(asking.database, asking.study)
    asking.database.close()


def test_two_workers_step_once(tmp_path, url):
    asking = Asking(tmp_path / "study", url)
    reports = fill(asking)
    start, stepped = threading.Barrier(4), []

    def one():
        database = open_database(asking.folder)
        start.wait()
        stepped.extend(tick(database, asking.study) for _ in range(20))
        database.close()

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(stepped) == 1
    assert stage(asking.database).round == 1
    (line,) = rounds_done(asking.database)
    assert (line["clients"], line["asked"]) == (len(reports), asking.study.slots)
    asking.database.close()


def test_a_worker_that_died_between_closing_and_stepping_is_replaced(tmp_path):
    asking = Asking(tmp_path / "study")
    fill(asking)
    asking.database.write("UPDATE study SET state = 'closing'")
    assert asking.join().code == "no-slot"
    assert tick(asking.database, asking.study)
    assert stage(asking.database).round == 1
    asking.database.close()


def test_a_round_ends_with_enough_reports_and_waits_for_them(tmp_path, caplog):
    asking = Asking(tmp_path / "study", users=12, fewest=2)
    fill(asking, 1)
    asking.wait(asking.study.round_seconds + 1)
    assert not tick(asking.database, asking.study)
    assert "has 1 reports and needs 2" in caplog.text
    assert stage(asking.database).deadline > asking.database.now()
    fill(asking, 1)
    asking.wait(asking.study.round_seconds + 1)
    assert tick(asking.database, asking.study)
    assert [line["clients"] for line in rounds_done(asking.database)] == [2]
    asking.database.close()


@pytest.mark.parametrize(("count", "rounds", "left_out"), [(0, 0, 0), (1, 0, 1), (3, 1, 0)])
def test_ending_early(tmp_path, count, rounds, left_out):
    asking = Asking(tmp_path / "study")
    fill(asking, count)
    assert end_study(asking.database, asking.study) == left_out
    assert stage(asking.database).state == ENDED
    assert len(rounds_done(asking.database)) == rounds
    assert end_study(asking.database, asking.study) == left_out
    asking.database.close()


def test_only_the_order_within_a_round_is_credited(tmp_path):
    asking = Asking(tmp_path / "study", users=6000, rounds=2, epsilon=2.0)
    rows = [{"clients": 3000, "round": round} for round in range(2)]
    asking.database.write("UPDATE rounds SET record = ?", json.dumps(rows[0]))
    found = full_status(asking.database, asking.study)
    assert (found["central_order"], found["central_users"]) == ("round", 3000)
    assert 0 < found["central_epsilon"] < 2
    asking.database.close()


def test_another_study_another_code_and_a_wrong_clock_are_refused(tmp_path):
    asking = Asking(tmp_path / "study")
    check_study(asking.database, asking.study)
    with pytest.raises(ValueError, match="holds study"):
        check_study(asking.database, dataclasses.replace(asking.study, users=99))
    asking.shift = -3600
    with pytest.raises(ValueError, match="the clock is wrong"):
        check_study(asking.database, asking.study)
    asking.shift = 0
    asking.database.write("UPDATE study SET fingerprint = 1")
    with pytest.raises(ValueError, match="this version"):
        check_study(asking.database, asking.study)
    asking.database.close()


def test_a_clock_that_goes_back_takes_no_slot_away(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("sqsgd.federation.collect.rounds._warned", {})
    asking = Asking(tmp_path / "study")
    granted = asking.join("7" * 32)
    asking.shift = 10
    tick(asking.database, asking.study)
    asking.shift = -7200
    for _ in range(2):
        tick(asking.database, asking.study)
    assert caplog.text.count("the clock went back") == 1
    assert "the clock went back" in full_status(asking.database, asking.study)["clock"]
    assert asking.join("7" * 32).slot == granted.slot
    asking.database.close()


def test_a_clock_that_jumps_ahead_ends_nothing_until_it_is_confirmed(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("sqsgd.federation.collect.rounds._warned", {})
    asking = Asking(tmp_path / "study", fewest=1)
    granted = asking.join("7" * 32)
    deadline = stage(asking.database).deadline
    fill(asking, 2)
    asking.shift = 10 * 365 * 86400
    for _ in range(2):
        assert not tick(asking.database, asking.study)
    assert caplog.text.count("the clock went forward") == 1
    assert "--clock-is-right" in full_status(asking.database, asking.study)["clock"]
    assert (stage(asking.database).round, stage(asking.database).deadline) == (0, deadline)
    asking.shift = 0
    tick(asking.database, asking.study)
    assert full_status(asking.database, asking.study)["clock"] == ""
    assert asking.join("7" * 32) == dataclasses.replace(granted, seconds=asking.join("7" * 32).seconds)
    asking.shift = 10 * 365 * 86400
    confirm_clock(asking.database)
    assert tick(asking.database, asking.study)
    asking.database.close()


def places(asking, column, table):
    """The values of a column, page by page, as they lie on the disk."""
    content = (asking.folder / FILE).read_bytes()
    (size,) = asking.database.read("PRAGMA page_size")[0]
    found = {}
    for (value,) in asking.database.read(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):  # noqa: S608
        for match in re.finditer(value.encode(), content):
            found.setdefault(match.start() // size, []).append((match.start(), value))
    return [[value for _, value in sorted(page, reverse=True)] for page in found.values()]


def test_what_is_left_of_a_round_is_in_the_order_of_keys(tmp_path, url):
    """So that neither pages nor row versions tell which invitation came with which slot."""
    asking = Asking(tmp_path / "study", url, users=60)
    fill(asking)
    asking.wait(1)
    assert tick(asking.database, asking.study)
    assert stage(asking.database).unscrubbed
    tick(asking.database, asking.study)
    assert not stage(asking.database).unscrubbed
    slots = dict(asking.database.read("SELECT ticket, slot FROM slots WHERE ticket IS NOT NULL"))
    assert len(slots) == asking.study.slots
    if url:
        rows = asking.database.read("SELECT number, xmin::text FROM invitations ORDER BY ctid")
        assert [number for number, _ in rows] == sorted(number for number, _ in rows)
        kept = asking.database.read("SELECT round, slot, xmin::text FROM slots ORDER BY ctid")
        assert [row[:2] for row in kept] == sorted(row[:2] for row in kept)
        assert len({row[-1] for row in rows + kept}) == 1
    else:
        log = (asking.folder / f"{FILE}-wal").read_bytes()
        assert not [ticket for ticket in slots if ticket.encode() in log]
        for page in places(asking, "number", "invitations"):
            assert page == sorted(page)
        pages = places(asking, "ticket", "slots")
        assert len(pages) >= 2  # the table and its index
        for page in pages:
            assert page in (sorted(page), sorted(page, key=slots.get))
    asking.database.close()


def test_scrubbing_is_repeated_until_it_succeeds(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("sqsgd.federation.collect.rounds._warned", {})
    asking = Asking(tmp_path / "study")
    fill(asking)
    reader = open_database(asking.folder)
    asking.database.read("PRAGMA busy_timeout = 1")
    reader.write("BEGIN")
    reader.read("SELECT * FROM slots")  # as a backup does: the log cannot be emptied
    end_study(asking.database, asking.study)
    assert "traces of the last round are still on the disk" in caplog.text
    assert full_status(asking.database, asking.study)["unscrubbed"]
    assert not tick(asking.database, asking.study)
    assert full_status(asking.database, asking.study)["unscrubbed"]
    reader.write("COMMIT")
    reader.close()
    end_study(asking.database, asking.study)
    assert not full_status(asking.database, asking.study)["unscrubbed"]
    asking.database.close()
