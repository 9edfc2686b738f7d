"""Slots, not clients: nothing public names a user, and the order of users is the server's secret."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from once_runs import finished, prepared
from sqsgd.training.settings import load_config
from tiny_runs import cut_off

from sqsgd import central_guarantee
from sqsgd.core import Scheme
from sqsgd.experiments import runner
from sqsgd.federated import rounds
from sqsgd.federated.order import Order
from sqsgd.files.secret_files import secret_folder
from sqsgd.learning.partition import SharedParts


def sent_by(run):
    """All that leaves clients or server in a run: (task, signs, message) of each report, and the models."""
    seen, usual = [], Scheme.encode_many

    def encode_many(self, x, tasks, rngs, *, workers=1):
        messages = usual(self, x, tasks, rngs, workers=workers)
        signs = [tasks.words(name, 64).tobytes() for name in ("signs 0", "signs 1")]
        seen.append((tasks.task, tasks.clients.tolist(), signs, messages.tobytes()))
        return messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheme, "encode_many", encode_many)
        list(runner.train(run, runner.start(run)))
    return seen


def without_times(values):
    return {name: value for name, value in values.items() if not name.startswith(("seconds", "share_"))}


def published(folder):
    """The content of every file of a run, without times."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    lines = found.pop("metrics.jsonl").splitlines()
    found["metrics"] = [without_times(json.loads(line)) for line in lines]
    found["summary"] = without_times(json.loads(found.pop("summary.json")))
    return found


def test_nothing_public_depends_on_a_users_number(tmp_path):
    """The users change places and take their data with them: every task, rotation and byte stays the same.

    So do all files of the run.
    """
    run = prepared(tmp_path / "one", clients=40, rounds=4)
    expected = sent_by(run)
    places = np.random.default_rng(1).permutation(40)  # user u is now called places[u]
    old = run.problem.parts
    parts = SharedParts(*old.together(np.argsort(places)))

    class Renamed(Order):
        def cohort(self, round):
            return places[super().cohort(round)]

    other = prepared(tmp_path / "other", clients=40, rounds=4)
    order = Renamed(**vars(other.settings.order))
    other = dataclasses.replace(
        other,
        problem=dataclasses.replace(other.problem, parts=parts),
        settings=dataclasses.replace(other.settings, order=order),
    )
    assert sent_by(other) == expected
    assert published(tmp_path / "other") == published(tmp_path / "one")
    assert [clients for _, clients, _, _ in expected] == [list(range(10))] * 4  # slots of a round


def test_a_task_with_the_users_number_would_be_noticed(tmp_path, monkeypatch):
    """Broken: as it was before there were slots."""
    monkeypatch.setattr(rounds, "_numbers", lambda _, users: users)
    with pytest.raises(AssertionError):
        test_nothing_public_depends_on_a_users_number(tmp_path)


def secrets_now():
    return set(secret_folder().iterdir())


def test_the_order_of_a_secure_run_is_kept_apart_until_it_ends(tmp_path):
    before = secrets_now()
    run = prepared(tmp_path / "run", clients=40, rounds=4, secure=True, epsilon=1.0)
    steps = runner.train(run, runner.start(run))
    next(steps)
    (file,) = secrets_now() - before
    assert file.stat().st_mode & 0o777 == 0o600
    key = json.loads(file.read_text())["key"]
    steps.close()
    again = runner.prepare(load_config(tmp_path / "run" / "config.toml"), tmp_path / "run")
    list(runner.train(again, runner.resume(again)))
    for path in (tmp_path / "run").rglob("*"):
        content = path.read_bytes()
        assert key.encode() not in content
        assert bytes.fromhex(key) not in content
    assert secrets_now() == before  # nobody needs to know it any more
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["users"], summary["order"], summary["order_seeded"]) == (40, "run", False)
    assert summary["order_note"].startswith("secret")
    known = central_guarantee(run.scheme, 40, 1e-6)
    assert (summary["central_epsilon"], summary["central_note"]) == (known.epsilon, known.sentence)


def test_the_order_of_a_secure_run_does_not_depend_on_the_seed(tmp_path):
    keys = []
    for name in ("one", "other"):
        before, run = secrets_now(), prepared(tmp_path / name, clients=40, rounds=4, secure=True)
        runner.start(run)
        (file,) = secrets_now() - before
        keys.append(json.loads(file.read_text())["key"])
    assert keys[0] != keys[1]


def test_a_simulation_says_that_its_order_is_seeded(tmp_path):
    finished(tmp_path / "run", clients=40, rounds=4)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["users"], summary["fewest_users"], summary["order"]) == (40, 10, "run")
    assert summary["order_seeded"] is True
    assert summary["order_note"] == "seeded: the central figure is a simulation's"
    assert summary["bytes_up"] == 5 + 2
    assert summary["central_epsilon"] is None  # 40 users do not hide a local 8


def test_clients_that_report_often_have_no_central_number(tmp_path):
    finished(tmp_path / "run", clients=40, rounds=4, participation="10")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not [name for name in summary if name.startswith(("central", "order"))]


def test_ledgers_do_not_lie_where_the_results_of_a_secret_order_go(tmp_path):
    """A ledger says in which round its user reported."""
    inside = str(tmp_path / "run" / "ledgers")
    run = prepared(tmp_path / "run", clients=40, rounds=4, secure=True, ledgers=inside)
    with pytest.raises(ValueError, match="ledger says in which round its user reported"):
        runner.start(run)
    runner.start(prepared(tmp_path / "run", clients=40, rounds=4, ledgers=inside))  # seeded: no secret


def test_a_run_without_its_order_is_not_resumed(tmp_path):
    before = secrets_now()
    run = cut_off(prepared(tmp_path / "run", clients=40, rounds=4, secure=True), 2)
    for file in secrets_now() - before:
        file.unlink()
    with pytest.raises(ValueError, match="users could be asked twice"):
        list(runner.train(run, runner.resume(run)))


def test_a_run_of_an_earlier_version_is_refused(tmp_path):
    """Its users had been asked in a public order, by rotations that named them."""
    shutil.copytree(Path(__file__).parents[1] / "runs/last_version/once", tmp_path / "once")
    run = runner.prepare(load_config(tmp_path / "once" / "config.toml"), tmp_path / "once")
    with pytest.raises(ValueError, match="begun by an earlier version, whose order of users"):
        runner.resume(run)
