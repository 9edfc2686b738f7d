"""Apps that fail on their data: the server cannot tell, and nothing runs on data before it is paid for."""

import errno
import json
import os
from fractions import Fraction

import numpy as np
import pytest
from asking import DIM, lines, request
from federation import answer, deflated, make_app, message, model, node_context, payload_of
from flwr.app import Array, ArrayRecord, Message, RecordDict

from sqsgd import Ledger, make_scheme
from sqsgd.federation.flower import ClientApp, SqsgdMod, wire
from sqsgd.federation.node import answer as node_answer
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import FolderState


def shape_of(reply: Message) -> tuple:
    """All of a reply but its noise."""
    about = {k: v for k, v in vars(reply.metadata).items() if k not in ("_created_at", "_ttl", "_message_id")}
    records = {name: sorted(record) for name, record in reply.content.items()}
    return about, records, len(payload_of(reply))


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, ValueError, MemoryError, FloatingPointError])
def test_an_exception_tells_nothing(tmp_path, error, caplog):
    """A paid report of zero, which differs from another app's report by its noise alone."""
    app = ClientApp()

    @app.train()
    def train(msg, context):
        raise error("the patient's name is Eve")

    options = {"code": "signs", "norm_epsilon": 60.0}  # a norm that is all but certain to be the true one
    asked = request(options=options)
    failed = app(message(asked), node_context(5, tmp_path))
    worked = answer(asked, node_context(5, tmp_path / "worked"))
    assert shape_of(failed) == shape_of(worked)
    assert Ledger(tmp_path / "ledger").spent == Ledger(tmp_path / "worked" / "ledger").spent == 200
    scheme = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32, **options)
    found, expected = (
        np.linalg.norm(scheme.decode(payload_of(each), asked.task)) for each in (failed, worked)
    )
    assert found < expected
    refused = app(message(request(bound=21.0)), node_context(5, tmp_path))
    assert refused.error.reason == policy.ANSWERED  # the round is over, as it is for an app that works


def test_nothing_is_computed_on_a_spent_budget(tmp_path):
    """However often a server asks: no app runs on data unpaid, so that none can tell by failing."""
    context, calls = node_context(5, tmp_path, max_epsilon=200.0), []
    payload_of(answer(request(), context, make_app(calls=calls)))
    for number in range(1, 5):
        reply = answer(request(round=number), context, make_app(calls=calls))
        assert reply.error.reason == policy.SPENT
    assert calls == [5]


def test_paid_before_the_app_runs(tmp_path):
    app, seen = ClientApp(), []

    @app.train()
    def train(msg, context):
        seen.append(Ledger(tmp_path / "ledger").spent)
        return Message(RecordDict({"arrays": msg.content["arrays"]}), reply_to=msg)

    payload_of(app(message(request()), node_context(5, tmp_path)))
    assert seen == [Fraction(200)]


COORDINATE = "x[7] = 0.123456789"
WHERE = {
    "computing": (SqsgdMod, "_train", False),
    "encoding": (node_answer, "client_step", False),
    "keeping the state": (FolderState, "write", True),
    "noting the answer": (node_answer, "note", False),
}


@pytest.mark.parametrize("stage", WHERE)
def test_errors_that_hold_coordinates_stay_at_the_node(tmp_path, monkeypatch, caplog, stage):
    """None of their text is in a reply or in a file that is copied around; the owner's log has it."""
    place, name, fails = WHERE[stage]
    honest = getattr(place, name)

    def raises(*arguments, **options):
        if stage == "encoding" and not arguments[2].any():
            return honest(*arguments, **options)  # zero, which is sent instead
        raise OSError(COORDINATE)

    monkeypatch.setattr(place, name, staticmethod(raises) if name == "_train" else raises)
    reply = answer(request(), node_context(5, tmp_path))
    assert reply.has_error() == fails
    if fails:
        assert (reply.error.code, reply.error.reason) == (2, policy.FAILED)
    assert COORDINATE.encode() not in b"".join(deflated(reply).values()) + repr(vars(reply.metadata)).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(COORDINATE.encode() in path.read_bytes() for path in files)
    assert COORDINATE in caplog.text


def test_a_node_that_tells_its_errors_is_found(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(policy, "explain", lambda error, *_: str(error))
    with pytest.raises(AssertionError):
        test_errors_that_hold_coordinates_stay_at_the_node(tmp_path, monkeypatch, caplog, "keeping the state")


# ---------------------------------------------------------------- apps whose replies do not fit the model


def complex_model(msg: Message) -> Message:
    """The model in complex numbers."""
    arrays = {
        name: Array(array.numpy().astype(np.complex128)) for name, array in msg.content["arrays"].items()
    }
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=msg)


def app_of(train) -> ClientApp:
    app = ClientApp()
    app.train()(train)
    return app


FORMS = [
    lambda msg, context: complex_model(msg),
    lambda msg, context: Message(RecordDict({"a": model(), "b": model()}), reply_to=msg),
    lambda msg, context: Message(
        RecordDict({"arrays": ArrayRecord({"x": Array(np.zeros(DIM, np.float32))})}), reply_to=msg
    ),
    lambda msg, context: {}["no such layer"],
]


@pytest.mark.parametrize(
    ("train", "why"),
    [
        *((train, node_answer.ZERO_FAILED) for train in FORMS),
        (
            lambda msg, context: Message(
                RecordDict({"gradient": wire.model_record(*_with_nan(msg))}), reply_to=msg
            ),
            node_answer.ZERO_UNENCODED,
        ),
    ],
)
def test_reports_of_zero_are_counted_for_the_owner_alone(tmp_path, train, why):
    context = node_context(5, tmp_path / "state")
    failed = app_of(train)(message(request()), context)
    payload_of(answer(request(round=1), context))
    assert why.encode() not in json.dumps(repr(failed.content)).encode()
    zeros = [line.get("zero") for line in lines(tmp_path / "state/answers.jsonl")]
    assert zeros == [why, None]


def _with_nan(msg):
    structure, weights = wire.flatten_record(msg.content["arrays"])
    weights[7] = np.nan
    return structure, weights


# ---------------------------------------------------------------- a disk that is full

WRITES = 6
"""Of a node's first answer; the last is the line in answers.jsonl."""


def answered(monkeypatch, folder, fail_at=0):
    """A node's reply, and how often it wrote."""
    calls = []

    def full_at_once(write):
        def attempt(*arguments):
            calls.append(arguments)
            if len(calls) == fail_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(*arguments)

        return attempt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_at_once(os.write))
        patch.setattr(os, "pwrite", full_at_once(os.pwrite))
        return make_app()(message(request()), node_context(5, folder)), len(calls)


@pytest.mark.parametrize("fail_at", range(1, WRITES))
def test_nothing_leaves_and_the_ledger_stays_good(tmp_path, monkeypatch, fail_at):
    reply, _ = answered(monkeypatch, tmp_path, fail_at)
    assert reply.error.reason == policy.FAILED
    again, _ = answered(monkeypatch, tmp_path)  # there is room again
    paid_before = fail_at == WRITES - 1  # the report itself was not kept: it was never sent, nor will be
    assert (again.error.reason == policy.ANSWERED) if paid_before else not again.has_error()
    assert Ledger(tmp_path / "ledger").spent == 200


def test_a_line_for_people_that_cannot_be_written_keeps_no_paid_report_back(tmp_path, monkeypatch):
    reply, count = answered(monkeypatch, tmp_path, WRITES)
    assert (reply.has_error(), count) == (False, WRITES)
    assert Ledger(tmp_path / "ledger").spent == 200
    assert lines(tmp_path / "answers.jsonl") == []
