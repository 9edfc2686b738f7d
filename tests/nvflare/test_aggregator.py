"""The aggregator, with reports of real clients."""

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")
from asking import arrays, target
from flare import Engine, Silo, Trainer, context, norm
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from sqsgd.federation.node import policy
from sqsgd.federation.node.server import NoAnswers
from sqsgd.federation.node.structure import flatten
from sqsgd.federation.nvflare import SqsgdAggregator, client
from sqsgd.federation.nvflare.client import PrivateExecution
from sqsgd.privacy.ledger import Ledger

SITES = ("site-1", "site-2")


def aggregator(**options):
    return SqsgdAggregator(**{"epsilon": 200.0, "bytes": 32, "options": {"code": "signs"}, **options})


def ask(server, model, rounds=0):
    """The task data that the server sends for a model."""
    data = DXO(DataKind.WEIGHTS, data=model).to_shareable()
    fl_ctx = context(name="server", engine=Engine(clients=SITES))
    fl_ctx.set_prop(AppConstants.TRAIN_SHAREABLE, data, private=True, sticky=False)
    data.set_header(AppConstants.NUM_ROUNDS, rounds)  # as ScatterAndGather does
    server.handle_event(AppEventType.BEFORE_TRAIN_TASK, fl_ctx)
    return data, fl_ctx


def reply_of(folder, name, data, executor=None, **own):
    owner = {"state-dir": str(folder / name), **(own or {"max-epsilon": 1e6})}
    return PrivateExecution((executor or Trainer()).execute, owner)(
        "train", data, context(name=name), Signal()
    )


def accept(server, name, reply):
    return server.accept(reply, context(name="server", peer=name))


def test_rounds_move_the_model_towards_the_clients(tmp_path):
    server, model = aggregator(lr=0.5), arrays()
    for _ in range(15):
        data, fl_ctx = ask(server, model)
        for name in SITES:
            assert accept(server, name, reply_of(tmp_path, name, data))
        model = client.model_of(server.aggregate(fl_ctx))
        server.reset(fl_ctx)
    weights = flatten(model)[1]
    assert weights @ target(5) > 0.8 * norm(weights) * norm(target(5))
    assert {name: array.shape for name, array in model.items()} == {"first": (10, 20), "second": (100,)}


def test_reports_per_record_spend_the_budget_of_all_rounds(tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")
    server = SqsgdAggregator(epsilon=4.0, delta=1e-5, unit="record", records=200)
    model, owner = {"weight": np.zeros((1, 20), np.float32)}, {"max-epsilon-per-record": 4.0, "delta": 1e-5}
    for _ in range(5):
        data, fl_ctx = ask(server, model, rounds=5)
        for name in SITES:
            assert accept(server, name, reply_of(tmp_path, name, data, Silo(), **owner))
        model = client.model_of(server.aggregate(fl_ctx))
    wanted = np.isin(np.arange(20), (0, 5))
    found = model["weight"][0]
    assert found @ wanted > 0.7 * norm(found) * norm(wanted)
    for name in SITES:
        ledger = Ledger(tmp_path / name / "ledger")
        assert (len(ledger.entries), ledger.delta) == (5, 1e-5)
        assert 3.9 < float(ledger.spent) <= 4.0
    data, _ = ask(server, model, rounds=5)
    assert not accept(server, SITES[0], reply_of(tmp_path, SITES[0], data, Silo(), **owner))
    assert server._reasons == {policy.NOT_ALLOWED: 1}  # a sixth round


def test_rounds_that_no_workflow_states_are_not_guessed():
    pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")
    server = SqsgdAggregator(epsilon=4.0, delta=1e-5, unit="record", records=200)
    data, fl_ctx = ask(server, {"weight": np.zeros((1, 20), np.float32)})
    assert client.request_fields(data) == {}
    assert EventType.FATAL_SYSTEM_ERROR in fl_ctx.get_engine().events


def test_the_order_of_arrival_changes_nothing(tmp_path):
    results = []
    data, _ = ask(aggregator(seed=3), arrays())
    replies = {name: reply_of(tmp_path, name, data) for name in SITES}
    for names in (SITES, SITES[::-1]):
        server = aggregator(seed=3)
        _, fl_ctx = ask(server, arrays())
        for name in names:
            assert accept(server, name, replies[name])
        results.append(flatten(client.model_of(server.aggregate(fl_ctx)))[1])
    np.testing.assert_array_equal(*results)


def test_an_invalid_answer_is_rejected(tmp_path):
    server = aggregator()
    data, fl_ctx = ask(server, arrays())
    good = reply_of(tmp_path, "site-1", data)
    payload = good[client.REPORT]
    plain = DXO(DataKind.WEIGHTS, data=arrays(1e9)).to_shareable()
    bad = (payload + b"\x00", payload[:-1], bytes(len(payload)), "text", None, [1] * len(payload))
    for reply in (Shareable(), plain, *(Shareable({client.REPORT: content}) for content in bad)):
        assert not accept(server, "site-2", reply)
    assert not accept(server, "site-2", good)  # in another client's name
    assert not accept(server, "site-2", Shareable({client.REASON: ["not", "hashable"]}))
    assert accept(server, "site-1", good)
    assert not accept(server, "site-1", good)  # twice
    model = flatten(client.model_of(server.aggregate(fl_ctx)))[1]
    assert np.abs(model).max() < 1e6
    assert not accept(server, "site-1", good)  # a report of the last round


def test_a_round_without_answers_stops_the_job():
    server = aggregator()
    _, fl_ctx = ask(server, arrays())
    for name in SITES:
        assert not accept(server, name, Shareable({client.REASON: policy.SPENT}))
    with pytest.raises(
        NoAnswers, match=r"0 valid reports.*\(2: the node refused: its privacy budget is spent\)"
    ):
        server.aggregate(fl_ctx)
    with pytest.raises(NoAnswers, match="ScatterAndGather"):
        aggregator().aggregate(fl_ctx)


def test_one_report_of_many_does_not_move_the_model(tmp_path):
    server = aggregator()
    data, fl_ctx = ask(server, arrays())
    assert accept(server, "site-1", reply_of(tmp_path, "site-1", data))
    for name in ("site-2", "site-3", "site-3"):  # who refuses twice counts once
        assert not accept(server, name, Shareable({client.REASON: policy.SPENT}))
    with pytest.raises(NoAnswers, match=r"1 valid reports, fewer than min_answers = 2 \(3: the node refused"):
        server.aggregate(fl_ctx)
    assert accept(server, "site-2", reply_of(tmp_path, "site-2", data))
    server.aggregate(fl_ctx)


def test_options_that_do_not_fit_stop_the_job():
    for options, model in (
        ({"scheme": "privunit-index", "bytes": 1}, arrays()),
        ({}, {"w": np.zeros(3, complex)}),
    ):
        data, fl_ctx = ask(aggregator(**{"options": {}, **options}), model)
        assert EventType.FATAL_SYSTEM_ERROR in fl_ctx.get_engine().events
        assert not client.request_fields(data)
