"""What leaves a node, and what does not; each promise is also shown to fail on a node that breaks it."""

import copy
import re

import numpy as np
import pytest
from federation import DIM, answer, lines, make_app, message, model, node_context, payload_of, request, target
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from test_node_state import check_kept_as_it_was

from sqsgd import Ledger, make_scheme, seeded_rng
from sqsgd.federation.flower import ClientApp, Simulation, SqsgdMod, wire
from sqsgd.federation.flower.mod import ContextState
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import FolderState
from sqsgd.training import client_step, noise_seed


@pytest.mark.parametrize("sends", ["gradient", "delta"])
def test_the_report_is_of_the_apps_update(tmp_path, sends):
    context = node_context(5, tmp_path)
    scheme = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32, code="signs")
    payload = payload_of(answer(request(), context, make_app(sends=sends)))
    wanted = -target(5) * (1.0 if sends == "gradient" else 0.3)
    block = scheme.transforms[0].coordinates(request().task, DIM)
    decoded = scheme.decode(payload, request().task)
    cosine = decoded[block] @ wanted[block] / np.linalg.norm(decoded) / np.linalg.norm(wanted[block])
    assert cosine > 0.5
    kept = FolderState(tmp_path).read("test")
    rest = np.setdiff1d(np.arange(DIM), block)
    np.testing.assert_allclose(kept.residual[rest], wanted[rest], rtol=1e-5)
    assert not kept.residual[block].any()


def test_nothing_else_leaves(tmp_path):
    reply = answer(request(), node_context(5, tmp_path))
    assert list(reply.content) == [wire.REPORT]
    assert list(reply.content[wire.REPORT]) == [wire.PAYLOAD]
    scheme = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32, code="signs")
    assert len(payload_of(reply)) == scheme.bits // 8
    bare = make_app(mod=lambda msg, context, call_next: call_next(msg, context))
    assert "metrics" in bare(message(request()), node_context(5, tmp_path)).content  # what the mod holds back


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other"])
def test_other_messages_get_no_answer_from_data(tmp_path, kind):
    app = make_app()
    if kind == "query":
        app.query()(lambda msg, context: Message(RecordDict(), reply_to=msg))
    if kind == "train.other":
        app.train("other")(lambda msg, context: 1 / 0)
    reply = app(message(request(), kind=kind), node_context(5, tmp_path))
    if kind == "train.other":  # a function of the app's that fails: a report all the same
        assert list(reply.content) == [wire.REPORT]
    else:
        assert reply.error.reason == policy.NOT_ALLOWED
        assert not (tmp_path / "ledger").exists()


def test_a_round_is_answered_once(tmp_path):
    context, calls = node_context(5, tmp_path), []
    app = make_app(calls=calls)
    first = payload_of(answer(request(), context, app))
    assert payload_of(answer(request(), context, app)) == first  # the same bytes: nothing new is told
    assert calls == [5]
    other = np.full(DIM, 0.5, np.float32)
    for asked, arrays in [
        (request(bound=21.0), None),
        (request(clip=1.0), None),
        (request(weights=other), model(0.5)),
        (request(alpha=0.5), None),
    ]:
        assert answer(asked, context, app, arrays=arrays).error.reason == policy.ANSWERED
    assert calls == [5]
    assert Ledger(tmp_path / "ledger").spent == 200
    payload_of(answer(request(round=3), context, app))
    for earlier in (0, 1, 2, 3):
        asked = request(round=earlier, bound=22.0)
        assert answer(asked, context, app).error.reason == policy.ANSWERED
    assert Ledger(tmp_path / "ledger").spent == 400
    noted = lines(tmp_path / "answers.jsonl")
    assert [entry["epsilon"] for entry in noted] == [200.0, 0.0, 200.0]
    assert noted[1]["again"] is True


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 201.0},
        {"scheme": "sqsgd-stateless"},
        {"bytes": 64},
        {"options": {"levels": 4}},
        {"seed": 10},
    ],
)
def test_a_training_does_not_become_weaker(tmp_path, changes):
    context = node_context(5, tmp_path)
    payload_of(answer(request(), context))
    reply = answer(request(round=1, **changes), context)
    assert reply.error.reason == policy.NOT_ALLOWED
    assert lines(tmp_path / "refusals.jsonl")[-1]["task"] == "test"
    payload_of(answer(request(round=1, epsilon=100.0), context))  # stronger is welcome
    assert answer(request(round=2), context).error.reason == policy.NOT_ALLOWED  # and then stays


def test_the_cap_holds_over_trainings(tmp_path):
    context = node_context(5, tmp_path, max_epsilon=500)
    payload_of(answer(request(), context))
    payload_of(answer(request(name="another"), context))
    reply = answer(request(name="third"), context)
    assert (reply.error.code, reply.error.reason) == (6, policy.SPENT)
    assert "cap" in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert Ledger(tmp_path / "ledger").spent == 400


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"simulate-seed": 3}, "unknown key"),
        ({"noise": "seeded"}, "unknown key"),
        ({"version": 2}, "version"),
        ({"seed": "-1"}, "seed"),
        ({"round": -1}, "round"),
        ({"bound": float("nan")}, "bound"),
        ({"options": "[" * 4000}, "Expecting|recursion|options"),
        ({"options": "[1]"}, "object"),
        ({"name": "a\nb"}, "printable"),
        ({"epsilon": 7}, "type float"),
        ({"model": "00"}, "digest"),
        ({"model": "0" * 32}, "digest"),
        ({"dim": DIM + 1}, "dim"),
        ({"client": "6"}, "another node"),
    ],
)
def test_malformed_requests_are_refused_and_noted(tmp_path, extra, word):
    sent, calls = message(request(), **extra), []
    reply = make_app(calls=calls)(sent, node_context(5, tmp_path))
    assert reply.error.reason in (policy.MALFORMED, policy.NOT_ALLOWED)
    assert re.search(word, lines(tmp_path / "refusals.jsonl")[-1]["reason"])
    assert calls == []
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    "extra",
    [{"name": "x" * 1_000_000}, {"y" * 1_000_000: 1}, {"round": [7] * 100_000}],
    ids=lambda extra: next(iter(extra))[:10],
)
def test_a_refused_request_writes_little(tmp_path, extra, caplog):
    assert make_app()(message(request(), **extra), node_context(5, tmp_path)).has_error()
    assert (tmp_path / "refusals.jsonl").stat().st_size < 2000
    assert lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert sum(len(record.getMessage()) for record in caplog.records) < 2000


@pytest.mark.parametrize("name", ["batch_size", "train.batch-size", "perDeviceTrainBatchSize"])
def test_the_batch_that_a_server_asks_for_is_checked_and_noted(tmp_path, name, caplog):
    """Wherever it stands: the run's configuration and the message's are both the server's."""
    app, context = make_app(), node_context(5, tmp_path, min_batch=8)
    sent = message(request())
    for run, own in [({name: 7}, {}), ({}, {name: 7}), ({name: 64}, {name: 7}), ({name: "7"}, {})]:
        context.run_config.clear()
        context.run_config.update(run)
        sent.content["config"] = ConfigRecord(own)
        assert app(sent, context).error.reason == policy.NOT_ALLOWED
    context.run_config.clear()
    # An app reads each of these with float() or as it reads a ConfigRecord.
    for own in (MetricRecord({name: 7}), ConfigRecord({name: "7.0"}), ConfigRecord({name: [7]})):
        sent.content["config"] = own
        assert app(sent, context).error.reason == policy.NOT_ALLOWED
    sent.content["config"] = ConfigRecord()
    assert not (tmp_path / "ledger").exists()
    context.run_config[name] = 8
    with caplog.at_level("INFO", logger="flwr"):
        payload_of(app(sent, context))
    assert "asked for round 1 of 'test': scheme sqsgd, epsilon 200, 32 bytes, a batch of 8" in caplog.text
    assert lines(tmp_path / "answers.jsonl")[0]["asked_batch"] == 8


def test_no_request_gets_seeded_noise(tmp_path):
    """Two nodes with the same data and request draw different noise; under a seed they would not."""
    asked = request(epsilon=20.0)
    secure = [payload_of(answer(asked, node_context(5, tmp_path / str(i)))) for i in range(2)]
    assert secure[0] != secure[1]
    app = make_app(SqsgdMod(simulation=Simulation(seed=3)))
    seeded = [payload_of(answer(asked, node_context(5, None), app)) for _ in range(2)]
    assert seeded[0] == seeded[1]
    scheme = make_scheme("sqsgd", dim=DIM, epsilon=20.0, bytes=32, code="signs")
    expected, _ = client_step(scheme, asked.task, -target(5), None, seeded_rng(noise_seed(3, 0, 5)))
    assert seeded[0] == expected
    assert expected not in secure


def test_an_app_writes_into_nothing_that_leaves_or_stays(tmp_path):
    def writes(msg, context, call_next):
        msg.metadata.group_id = "patient 7"
        msg.metadata.ttl = 7.0
        context.node_config["max-epsilon"] = 1e9
        context.run_config["batch"] = 7
        return call_next(msg, context)

    app = ClientApp(mods=[writes])
    app.train()(lambda msg, context: Message(RecordDict({"arrays": msg.content["arrays"]}), reply_to=msg))
    context, asked = node_context(5, tmp_path), message(request())
    settings, before = (dict(context.node_config), dict(context.run_config)), copy.deepcopy(asked.metadata)
    reply = app(asked, context)
    payload_of(reply)
    assert reply.metadata.group_id == before.group_id
    assert abs(reply.metadata.ttl - before.ttl) < 600
    assert (context.node_config, context.run_config) == settings


# ---------------------------------------------------------------- nodes that are not set up


def test_a_server_without_the_strategy_gets_nothing(tmp_path):
    sent = message(request())
    del sent.content[wire.REQUEST]
    assert make_app()(sent, node_context(5, tmp_path)).error.reason == policy.NOT_ASKED


def test_what_flower_keeps_comes_back_as_it_was():
    check_kept_as_it_was(ContextState(node_context(5, None)))
