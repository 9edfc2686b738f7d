"""A round ends once, with exactly its reports, whatever their order; a study that has ended is a run."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
from devices import at_once
from safetensors.numpy import load_file
from typed import typed

from sqsgd.federation.collect.database import open_database
from sqsgd.federation.collect.intake import ENDED, Issue, stage
from sqsgd.federation.collect.oblivious import Malformed, check_keys
from sqsgd.federation.collect.rounds import (
    KEY_SECONDS,
    create_study,
    end_study,
    full_status,
    gateway_keys,
    guarantee,
    opened,
    read_state,
    rotate_keys,
    rounds_done,
    tick,
    write_outcome,
)
from sqsgd.federation.collect.study import GATEWAY_KEY, read_key
from sqsgd.training import server_step
from sqsgd.training.reading import read_run


def test_the_step_is_that_of_the_algorithm_bit_for_bit(asking_of, url):
    asking = asking_of(url, optimizer="momentum", users=30)
    state = read_state(asking.database, 0)
    assert asking.study.made_scheme.symbols
    for round in range(3):
        reports, scheme = asking.fill(round), asking.study.made_scheme
        assert tick(asking.database, asking.study)
        sent = np.zeros(scheme.symbols, np.int64)
        for task, message, _ in reports:
            np.add.at(sent, scheme.open(message, task)[0], 1)
        near, _ = server_step(scheme, asking.study, state, reports)
        state, _ = server_step(scheme, asking.study, state, [(reports[0][0], sent, None)])
        assert np.allclose(near.weights, state.weights, rtol=1e-5, atol=1e-5)
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
    assert (line["clients"], line["asked"]) == (asking.study.expected, asking.study.expected)


def test_a_round_ends_with_enough_reports_and_waits_for_them(asking_of, caplog):
    asking = asking_of(fewest=2)
    asking.fill(count=1)
    asking.shift += asking.study.round_seconds + 1
    assert not tick(asking.database, asking.study)
    assert "has 1 reports and needs 2" in caplog.text
    assert stage(asking.database).deadline > asking.database.now()
    asking.fill(count=1)
    asking.shift += asking.study.round_seconds + 1
    assert tick(asking.database, asking.study)
    assert [line["clients"] for line in rounds_done(asking.database)] == [2]


@pytest.mark.parametrize(("count", "rounds", "left_out"), [(0, 0, 0), (1, 0, 1), (3, 1, 0)])
def test_ending_early(asking_of, count, rounds, left_out):
    asking = asking_of()
    asking.fill(count=count)
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


def test_the_order_of_drawn_rounds_is_that_of_the_run(asking_of):
    """With all reports received, however unequal the rounds are; the figure of README for 60,000."""
    asking = asking_of(dim=3920, users=60000, rounds=40, epsilon=4.0, bytes=48, visits="drawn")
    lines = [{"clients": 1400 + 5 * (round % 3), "round": round} for round in range(40)]
    found = guarantee(asking.study, lines)
    received = sum(line["clients"] for line in lines)
    assert (found["central_order"], found["central_users"], found["users"]) == ("run", received, received)
    assert 0.138 < found["central_epsilon"] < 0.15
    assert "each device drew its rounds" in found["order_note"]
    assert "the service sees who sent what" in found["central_note"]
    behind = dataclasses.replace(asking.study, relay="https://relay.example/x")
    assert "against the service and all who see the models" in guarantee(behind, lines)["central_note"]


def test_single_visits_are_not_hidden_from_the_service(asking_of):
    """A device asks the service for its token, and reports through the relay a moment later."""
    asking = asking_of(users=6000, rounds=2, epsilon=2.0, relay="https://relay.example/x", visits="once")
    found = guarantee(asking.study, [{"clients": 3000, "round": round} for round in range(2)])
    assert "the service can match reports with tokens by time" in found["central_note"]
    assert "against the service and" not in found["central_note"]
    assert any("times of tokens and reports" in each for each in found["central_assumptions"])


@pytest.mark.parametrize(("visits", "relay"), [("drawn", "https://r.example/x"), ("drawn", ""), ("once", "")])
def test_the_document_states_what_is_assumed(asking_of, tmp_path, visits, relay):
    """Certificate, summary and page: devices drew their rounds, and no operator keeps or draws an order."""
    shape = {"users": 1500, "rounds": 1, "epsilon": 0.5, "bytes": 48, "dim": 64, "fewest": 1}
    asking = asking_of(visits=visits, relay=relay, round_seconds=100.0, **shape)
    asking.shift += 101
    asking.fill(0)
    asking.shift += 100
    tick(asking.database, asking.study)
    summary = write_outcome(tmp_path / "run", asking.database, asking.study)
    document = json.loads((tmp_path / "run/central.json").read_text())
    assert document["assumptions"] == summary["central_assumptions"]
    typed(["sqsgd", "report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    page, said = (tmp_path / "page.html").read_text(), " ".join(document["assumptions"])
    for text in (said, summary["central_note"], page):
        assert "keeps the order" not in text
        assert "operator" not in text or text is page
    assert ("drew its rounds itself" in said) == (visits == "drawn")
    assert ("relay does not help the service" in said) == (relay != "")
    assert summary["central_note"] in page


def test_several_reports_are_composed(asking_of):
    """Each in a round of its own draw: the orders of the run. All in one visit: those of the round."""
    sizes = [{"clients": 3000, "round": round} for round in range(4)]
    study = asking_of(users=6000, rounds=4, epsilon=2.0, reports=2, visits="drawn").study
    once = guarantee(asking_of(folder="b", users=6000, rounds=4, epsilon=2.0, reports=2).study, sizes, 0)
    drawn, fewer = guarantee(study, sizes, 0), guarantee(study, sizes, 500)
    assert (drawn["users"], drawn["central_epsilon"] < fewer["central_epsilon"]) == (6000, True)
    assert "when the study has ended" in guarantee(study, sizes)["central_note"]
    assert (drawn["central_order"], drawn["central_users"]) == ("run", 6000)
    assert (once["central_order"], once["central_users"]) == ("round", 1500)
    assert 0 < drawn["central_epsilon"] < once["central_epsilon"] < 4


def test_drop_outs_are_counted(asking_of):
    """Expected minus received: about, while the study runs; exactly, when it has ended."""
    asking = asking_of(users=40, rounds=2, visits="drawn", round_seconds=100.0, fewest=1)
    asking(*(Issue(f"{i:032x}", "b") for i in range(40)))
    assert full_status(asking.database, asking.study)["missed"] == 0
    asking.shift += 101
    asking.fill(0, count=15)
    asking.shift += 100
    tick(asking.database, asking.study)
    assert full_status(asking.database, asking.study)["missed"] == 5
    asking.fill(1, count=18)
    asking.shift += 100
    tick(asking.database, asking.study)
    assert full_status(asking.database, asking.study)["missed"] == 7


def test_a_drawn_round_with_too_few_reports_takes_no_step(asking_of):
    asking = asking_of(visits="drawn", round_seconds=100.0, fewest=3)
    before = read_state(asking.database, 0).weights
    asking.shift += 101
    asking.fill(0, count=2)
    asking.shift += 100
    assert tick(asking.database, asking.study)
    assert read_state(asking.database, 1).weights.tobytes() == before.tobytes()
    assert (stage(asking.database).round, rounds_done(asking.database)) == (1, [])


def test_rounds_that_passed_while_no_worker_ran(asking_of):
    asking = asking_of(visits="drawn", round_seconds=100.0, fewest=1)
    asking.shift += 101
    asking.fill()
    asking.shift += 240
    assert [tick(asking.database, asking.study) for _ in range(3)] == [True, True, False]
    assert stage(asking.database).round == 2
    assert asking(asking.report(2)) == [None]


def test_keys_of_the_gateway_are_replaced(asking_of, url):
    """Signed by whoever has the signing key; a signature lasts as long as the gateway keeps the key."""
    asking = asking_of(url)
    signer = read_key(asking.folder / GATEWAY_KEY, asking.study.gateway_key)
    begun, ((first,), before) = asking.database.now(), gateway_keys(asking.database)
    for week, numbers in enumerate(([2, 1], [3, 2], [4, 3])):
        asking.shift = (week + 1) * (KEY_SECONDS + 1)
        tick(asking.database, asking.study)
        assert gateway_keys(asking.database)[1] == before
        for _ in range(2):
            tick(asking.database, asking.study, signer)
        found, signed = gateway_keys(asking.database)
        assert [key.number for key in found] == numbers
        assert (first in found) == (week == 0)
        for now in (begun + asking.shift, begun + asking.shift + 2 * KEY_SECONDS - 5):
            assert check_keys(signed, signer.public_key(), now) == found[0].configuration
        with pytest.raises(Malformed, match="expired"):
            check_keys(signed, signer.public_key(), begun + asking.shift + 2 * KEY_SECONDS + 5)
        before = signed
    assert len({key.private for key in found} | {first.private}) == 3


def test_the_operator_sees_that_nobody_replaces_the_keys(asking_of, url):
    """Devices send nothing once they have expired."""
    asking = asking_of(url, relay="https://relay.example/x")
    for days, words in (
        (1, "valid for 13 days"),
        (8, "valid for 6 days; nobody replaces"),
        (15, "EXPIRED: dev"),
    ):
        asking.shift = 86400.0 * days
        assert full_status(asking.database, asking.study)["keys"].startswith(words)
    rotate_keys(asking.database, read_key(asking.folder / GATEWAY_KEY, asking.study.gateway_key))
    assert full_status(asking.database, asking.study)["keys"] == "valid for 14 days"


@pytest.fixture
def ended(asking_of):
    asking = asking_of(users=30)
    for round in range(3):
        asking.fill(round)
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
    assert ("invitation" in summary["admission"], summary["missed"]) == (True, 0)
    weights = load_file(tmp_path / "run/model.safetensors")["weights"]
    assert weights.tobytes() == read_state(ended.database, 3).weights.tobytes()


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
