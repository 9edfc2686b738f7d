"""Who fills which slot: everybody at most once, all orders equally likely, and nobody told."""

import dataclasses
import itertools
import json
import os

import numpy as np
import pytest
import torch
from reference import g_test
from tiny_runs import ONCE, cut_off, loaded, prepared, resumed, started, without_times

from sqsgd import central_guarantee
from sqsgd._internal.files import replace_secret, secret_folder
from sqsgd.core import Scheme
from sqsgd.learning.partition import Parts
from sqsgd.training import engine
from sqsgd.training.order import Order, keep_order, kept_order, secret_order


@pytest.mark.parametrize(
    ("users", "per_round"), [(1, 1), (2, 1), (10, 3), (1000, 7), (4097, 1024), (70_000, 1000)]
)
def test_every_user_has_one_slot(users, per_round):
    order, rounds = secret_order(users, per_round), users // per_round
    asked = np.concatenate([order.cohort(round) for round in reversed(range(rounds))])
    assert asked.size == rounds * per_round
    assert np.unique(asked).size == asked.size
    assert asked.min() >= 0
    assert asked.max() < users
    for wrong in (rounds, -1):
        with pytest.raises(ValueError, match="are too few"):
            order.cohort(wrong)


def counted_orders(draws):
    """How often each order of four users came up, over as many keys."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(draws):
        order = secret_order(4, 2)
        counts[*order.cohort(0).tolist(), *order.cohort(1).tolist()] += 1
    return list(counts.values())


def test_all_orders_are_equally_likely(monkeypatch):
    assert g_test(counted_orders(4000), [4000 / 24] * 24) > 1e-6
    words = Order._words
    # Ties, which the user's number then decides.
    monkeypatch.setattr(Order, "_words", lambda self, *where: words(self, *where) & np.uint64(3 << 62))
    assert g_test(counted_orders(4000), [4000 / 24] * 24) < 1e-6


def test_a_secret_order_comes_from_the_operating_system(monkeypatch):
    one, other = secret_order(100, 10), secret_order(100, 10)
    assert not one.seeded
    assert one.key != other.key
    assert one.cohort(0).tolist() != other.cohort(0).tolist()
    assert one.key.hex() not in repr(one)
    assert repr(one.key) not in repr(one)
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))
    assert secret_order(100, 10).key == bytes(range(32))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"users": 1, "per_round": 1, "key": "zz"}', b"[1]"])
def test_a_damaged_file_is_named(tmp_path, content):
    order = secret_order(100, 10)
    name = keep_order(order, tmp_path)
    assert kept_order(name) == order
    replace_secret(name, content)
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        kept_order(name)


@pytest.fixture
def _one_thread():
    """The last bits of losses depend on torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sent_by(run):
    """The task and the message of each report, which are all that leaves a client."""
    seen, encode, encode_many = [], Scheme.encode, Scheme.encode_many

    def one(self, x, task, rng):
        seen.append((task, encode(self, x, task, rng)))
        return seen[-1][1]

    def many(self, x, tasks, rng, *, workers=1):
        messages = encode_many(self, x, tasks, rng, workers=workers)
        seen.extend((task, message.tobytes()) for task, message in zip(tasks, messages, strict=True))
        return messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheme, "encode", one)
        patch.setattr(Scheme, "encode_many", many)
        list(started(run))
    return seen


def published(folder):
    """The content of every file of a run, without times."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    lines = found.pop("metrics.jsonl").splitlines()
    found["metrics"] = [without_times(json.loads(line)) for line in lines]
    found["summary"] = without_times(json.loads(found.pop("summary.json")))
    return found


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("few", [0, 100])
def test_nothing_public_depends_on_a_users_number(tmp_path, monkeypatch, few):
    """The users change places and take their data with them: every task and byte stays the same.

    So do all files of the run, whether users are encoded one by one or many at once.
    """
    monkeypatch.setattr(engine, "_FEW", few)
    run = prepared(tmp_path / "one", ONCE, clients=40, rounds=4)
    expected = sent_by(run)
    places = np.random.default_rng(1).permutation(40)  # user u is now called places[u]
    old = run.problem.parts
    parts = Parts(*old.together(np.argsort(places)))

    class Renamed(Order):
        def cohort(self, round):
            return places[super().cohort(round)]

    other = prepared(tmp_path / "other", ONCE, clients=40, rounds=4)
    problem = dataclasses.replace(other.problem, parts=parts)
    other = dataclasses.replace(other, problem=problem, order=Renamed(**vars(other.order)))
    assert sent_by(other) == expected
    assert published(tmp_path / "other") == published(tmp_path / "one")
    assert [task.client for task, _ in expected] == 4 * list(range(10))  # slots of a round


def test_a_task_with_the_users_number_would_be_noticed(tmp_path, monkeypatch):
    """Broken: as it was before there were slots."""
    made = engine._Clients
    monkeypatch.setattr(engine, "_Clients", lambda run, state, users, _: made(run, state, users, users))
    with pytest.raises(AssertionError):
        test_nothing_public_depends_on_a_users_number(tmp_path, monkeypatch, 100)


def secrets_now():
    return set(secret_folder().iterdir())


def test_the_order_of_a_secure_run_is_kept_apart_until_it_ends(tmp_path):
    before = secrets_now()
    run = prepared(tmp_path / "run", ONCE, clients=40, rounds=4, secure=True, epsilon=1.0)
    steps = started(run)
    next(steps)
    (file,) = secrets_now() - before
    assert file.stat().st_mode & 0o777 == 0o600
    key = json.loads(file.read_text())["key"]
    steps.close()
    again = loaded(tmp_path / "run")
    list(resumed(again))
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
        before, run = secrets_now(), prepared(tmp_path / name, ONCE, clients=40, rounds=4, secure=True)
        run.started()
        (file,) = secrets_now() - before
        keys.append(json.loads(file.read_text())["key"])
    assert keys[0] != keys[1]


def test_ledgers_do_not_lie_where_the_results_of_a_secret_order_go(tmp_path):
    """A ledger says in which round its user reported."""
    inside = str(tmp_path / "run" / "ledgers")
    run = prepared(tmp_path / "run", ONCE, clients=40, rounds=4, secure=True, ledgers=inside)
    with pytest.raises(ValueError, match="ledger says in which round its user reported"):
        run.started()
    prepared(tmp_path / "run", ONCE, clients=40, rounds=4, ledgers=inside).started()  # seeded: no secret


def test_a_run_without_its_order_is_not_resumed(tmp_path):
    before = secrets_now()
    run = cut_off(prepared(tmp_path / "run", ONCE, clients=40, rounds=4, secure=True), 2)
    for file in secrets_now() - before:
        file.unlink()
    with pytest.raises(ValueError, match="users could be asked twice"):
        list(resumed(run))
