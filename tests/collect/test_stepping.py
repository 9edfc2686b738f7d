"""A round ends once, with exactly its reports, in the order of slots; a study that has ended is a run."""

import contextlib
import dataclasses
import json
import re
from collections import Counter

import numpy as np
import pytest
from devices import at_once
from safetensors.numpy import load_file
from typed import typed

from sqsgd.federation.collect.database import FILE, open_database
from sqsgd.federation.collect.intake import ENDED, Probe, stage
from sqsgd.federation.collect.rounds import (
    check_study,
    create_study,
    end_study,
    full_status,
    guarantee,
    opened,
    progress,
    read_state,
    rounds_done,
    tick,
    write_outcome,
)
from sqsgd.training import server_step
from sqsgd.training.reading import read_run


def test_the_step_is_that_of_the_algorithm_bit_for_bit(asking_of, url):
    asking = asking_of(url, optimizer="momentum", users=30)
    state = read_state(asking.database, 0)
    for _ in range(3):
        reports = asking.fill()
        assert tick(asking.database, asking.study)
        state, _ = server_step(asking.study.made_scheme, asking.study, state, reports)
        now = read_state(asking.database, state.round)
        assert now.weights.tobytes() == state.weights.tobytes()
        assert (now.bound, now.optimizer.keys()) == (state.bound, state.optimizer.keys())
    assert stage(asking.database).state == ENDED
    assert not tick(asking.database, asking.study)


def test_two_workers_step_once(asking):
    asking.fill()

    def one(_):
        with contextlib.closing(open_database(asking.folder)) as database:
            return sum(tick(database, asking.study) for _ in range(20))

    assert sum(at_once(4, one)) == 1
    assert stage(asking.database).round == 1
    (line,) = rounds_done(asking.database)
    assert (line["clients"], line["asked"]) == (asking.study.slots, asking.study.slots)


def test_a_round_ends_with_enough_reports_and_waits_for_them(asking_of, caplog):
    asking = asking_of(fewest=2)
    asking.fill(1)
    asking.shift += asking.study.round_seconds + 1
    assert not tick(asking.database, asking.study)
    assert "has 1 reports and needs 2" in caplog.text
    assert stage(asking.database).deadline > asking.database.now()
    asking.fill(1)
    asking.shift += asking.study.round_seconds + 1
    assert tick(asking.database, asking.study)
    assert [line["clients"] for line in rounds_done(asking.database)] == [2]


@pytest.mark.parametrize(("count", "rounds", "left_out"), [(0, 0, 0), (1, 0, 1), (3, 1, 0)])
def test_ending_early(asking_of, count, rounds, left_out):
    asking = asking_of()
    asking.fill(count)
    assert end_study(asking.database, asking.study) == left_out
    assert stage(asking.database).state == ENDED
    assert len(rounds_done(asking.database)) == rounds
    assert end_study(asking.database, asking.study) == left_out


@pytest.mark.parametrize("kind", ["invited", "open"])
def test_an_open_study_has_no_central_guarantee(asking_of, kind):
    """One person may have made all the other reports. Only the order within a round is credited."""
    asking = asking_of(users=6000, rounds=2, epsilon=2.0, admission=kind)
    found = guarantee(asking.study, [{"clients": 3000, "round": round} for round in range(2)])
    assert ("one person may have made all" in found["central_note"]) == (kind == "open")
    if kind == "open":
        assert (found["central_epsilon"], "central_users" in found) == (None, False)
    else:
        assert (found["central_order"], found["central_users"]) == ("round", 3000)
        assert 0 < found["central_epsilon"] < 2


def test_progress_and_status(asking_of):
    asking = asking_of(users=60, rounds=2)
    asking.fill()
    tick(asking.database, asking.study)
    asking.fill(3)
    asking.join()
    asking(Probe(), refused=Counter({"invitation-used": 1}))
    known = progress(asking.database, asking.study)
    assert (known["round"], known["state"], known["reports"], known["slots"]) == (1, "open", 3, 30)
    found = full_status(asking.database, asking.study)
    assert (found["all_reports"], found["tickets_out"], found["invitations_used"]) == (33, 1, 34)
    assert (found["refusals"], found["users"], found["order"]) == ({"invitation-used": 1}, 30, "round")


def test_another_study_and_another_version_are_refused(asking_of):
    asking = asking_of()
    check_study(asking.database, asking.study)
    with pytest.raises(ValueError, match="holds study"):
        check_study(asking.database, dataclasses.replace(asking.study, users=99))
    asking.database.write("UPDATE study SET fingerprint = 1")
    with pytest.raises(ValueError, match="this version"):
        check_study(asking.database, asking.study)


def places(asking, column, table):
    """The values of a column, page by page, as they lie on the disk."""
    content = (asking.folder / FILE).read_bytes()
    (size,) = asking.database.read("PRAGMA page_size")[0]
    found = {}
    for (value,) in asking.database.read(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):  # noqa: S608
        for match in re.finditer(value.encode(), content):
            found.setdefault(match.start() // size, []).append((match.start(), value))
    return [[value for _, value in sorted(page, reverse=True)] for page in found.values()]


def test_what_is_left_of_a_round_is_in_the_order_of_keys(asking_of, url):
    """So that neither pages nor row versions tell which invitation came with which slot."""
    asking = asking_of(url, users=60)
    asking.fill()
    asking.shift += 1
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


def test_scrubbing_is_repeated_until_it_succeeds(asking_of, caplog):
    asking = asking_of()
    asking.fill()
    reader = open_database(asking.folder)
    asking.database.read("PRAGMA busy_timeout = 1")
    reader.write("BEGIN")
    reader.read("SELECT * FROM slots")  # as a backup does: the log cannot be emptied
    end_study(asking.database, asking.study)
    assert not tick(asking.database, asking.study)
    assert caplog.text.count("traces of the last round are still on the disk") == 1
    assert full_status(asking.database, asking.study)["unscrubbed"]
    reader.write("COMMIT")
    reader.close()
    end_study(asking.database, asking.study)
    assert not full_status(asking.database, asking.study)["unscrubbed"]


@pytest.fixture
def ended(asking_of):
    asking = asking_of(users=30)
    for _ in range(3):
        asking.fill()
        tick(asking.database, asking.study)
    return asking


def test_the_run_is_read_and_shown_like_any_other(ended, tmp_path):
    summary = write_outcome(tmp_path / "run", ended.database, ended.study)
    run = read_run(tmp_path / "run")
    assert (run.state, run.rounds, run.config.once) == ("finished", 3, True)
    assert (run.config.dataset, run.config.model) == ("data of the devices", "test")
    assert summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["users"], summary["fewest_users"], summary["order"]) == (30, 10, "round")
    assert summary["epsilon_total"] <= 8
    assert "invitation" in summary["admission"]
    weights = load_file(tmp_path / "run/model.safetensors")["weights"]
    assert weights.tobytes() == read_state(ended.database, 3).weights.tobytes()
    done = typed(["sqsgd", "report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert done.code == 0, done.error
    assert "data of the devices" in (tmp_path / "page.html").read_text()


def test_the_run_is_written_once_and_again_after_a_crash(ended, tmp_path):
    def one(_):
        with contextlib.closing(open_database(ended.folder)) as database:
            return write_outcome(tmp_path / "run", database, ended.study)["rounds"]

    assert at_once(4, one) == [3] * 4
    first = (tmp_path / "run/summary.json").stat()
    write_outcome(tmp_path / "run", ended.database, ended.study)
    assert (tmp_path / "run/summary.json").stat().st_mtime_ns == first.st_mtime_ns
    (tmp_path / "run/summary.json").unlink()  # killed before the last file
    write_outcome(tmp_path / "run", ended.database, ended.study)
    assert read_run(tmp_path / "run").state == "finished"


def test_a_study_that_ended_early_is_a_shorter_run(asking_of, tmp_path):
    asking = asking_of(users=30)
    with pytest.raises(ValueError, match="has not ended"):
        write_outcome(tmp_path / "run", asking.database, asking.study)
    asking.fill()
    tick(asking.database, asking.study)
    end_study(asking.database, asking.study)
    summary = write_outcome(tmp_path / "run", asking.database, asking.study)
    assert (summary["rounds"], summary["finished"]) == (1, False)
    assert read_run(tmp_path / "run").rounds == 1


def test_a_model_keeps_its_names_and_shapes(tmp_path):
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(2, np.float32)}
    create_study(tmp_path / "study", arrays, {"name": "named", "users": 12, "rounds": 3})
    with opened(tmp_path / "study") as (study, database):
        assert read_state(database, 0).weights.tolist() == [1, 1, 0, 1, 2, 3, 4, 5]
        end_study(database, study)
        write_outcome(tmp_path / "run", database, study)
    written = load_file(tmp_path / "run/model.safetensors")
    assert {name: array.tolist() for name, array in written.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
