"""Apps that fail on their data: the server cannot tell, and nothing runs on data before it is paid for."""

from fractions import Fraction

import numpy as np
import pytest
from federation import DIM, answer, deflated, make_app, message, node_context, payload_of, request
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from sqsgd import Ledger, make_scheme
from sqsgd.flower import SqsgdMod, wire
from sqsgd.node import answer as node_answer
from sqsgd.node import reasons
from sqsgd.node.node_state import FolderState
from sqsgd.training import client_step


def shape_of(reply: Message) -> tuple:
    """All of a reply but its noise."""
    about = {k: v for k, v in vars(reply.metadata).items() if k not in ("_created_at", "_ttl", "_message_id")}
    records = {name: sorted(record) for name, record in reply.content.items()}
    return (
        about,
        records,
        len(payload_of(reply)),
        wire.serialised_size(Message(reply.content, reply_to=reply)),
    )


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, ValueError, MemoryError, FloatingPointError])
def test_an_exception_tells_nothing(tmp_path, error, caplog):
    """A paid report of zero, which differs from another app's report by its noise alone."""
    app = ClientApp(mods=[SqsgdMod()])

    @app.train()
    def train(msg, context):
        raise error("the patient's name is Eve")

    options = {"code": "signs", "norm_epsilon": 60.0}  # a norm that is all but certain to be the true one
    asked = request(options=options)
    failed = app(message(asked), node_context(5, tmp_path))
    worked = answer(asked, node_context(5, tmp_path / "worked"))
    assert shape_of(failed) == shape_of(worked)
    assert Ledger(tmp_path / "ledger").spent == Ledger(tmp_path / "worked" / "ledger").spent == 200
    scheme = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bits=256, **options)
    found, expected = (
        np.linalg.norm(scheme.decode(payload_of(each), asked.task)) for each in (failed, worked)
    )
    assert found < expected
    refused = app(message(request(bound=21.0)), node_context(5, tmp_path))
    assert refused.error.reason == reasons.ANSWERED  # the round is over, as it is for an app that works


def test_an_apps_own_error_tells_nothing(tmp_path):
    from flwr.app import Error

    app = ClientApp(mods=[SqsgdMod()])
    app.train()(lambda msg, context: Message(Error(17, "Eve"), reply_to=msg))
    failed = app(message(request()), node_context(5, tmp_path))
    assert shape_of(failed) == shape_of(answer(request(), node_context(5, tmp_path / "worked")))


def test_nothing_is_computed_on_a_spent_budget(tmp_path):
    """However often a server asks: no app runs on data unpaid, so that none can tell by failing."""
    context, calls = node_context(5, tmp_path, max_epsilon=200.0), []
    payload_of(answer(request(), context, make_app(calls=calls)))
    for number in range(1, 5):
        reply = answer(request(round=number), context, make_app(calls=calls))
        assert reply.error.reason == reasons.SPENT
    assert calls == [5]


def test_paid_before_the_app_runs(tmp_path):
    app, seen = ClientApp(mods=[SqsgdMod()]), []

    @app.train()
    def train(msg, context):
        seen.append(Ledger(tmp_path / "ledger").spent)
        return Message(RecordDict({"arrays": msg.content["arrays"]}), reply_to=msg)

    payload_of(app(message(request()), node_context(5, tmp_path)))
    assert seen == [Fraction(200)]


def test_a_gradient_that_is_not_finite_is_not_told(tmp_path):
    app = ClientApp(mods=[SqsgdMod()])

    @app.train()
    def train(msg, context):
        structure, weights = wire.flatten_record(msg.content["arrays"])
        weights[7] = np.nan
        return Message(RecordDict({"gradient": wire.model_record(structure, weights)}), reply_to=msg)

    reply = app(message(request()), node_context(5, tmp_path))
    assert len(payload_of(reply)) == len(
        payload_of(answer(request(client=6), node_context(6, tmp_path / "6")))
    )
    assert Ledger(tmp_path / "ledger").spent == 200


@pytest.mark.parametrize("error", [OverflowError, ZeroDivisionError, FloatingPointError, RuntimeWarning])
def test_a_vector_that_cannot_be_encoded_is_not_told(tmp_path, monkeypatch, error):
    """Whatever the encoding of some vectors raises, of zero it raises nothing."""

    def fragile(scheme, task, gradient, *arguments, **options):
        if gradient.any():
            raise error("of this vector")
        return client_step(scheme, task, gradient, *arguments, **options)

    worked = answer(request(), node_context(5, tmp_path / "worked"))
    monkeypatch.setattr(node_answer, "client_step", fragile)
    failed = answer(request(), node_context(5, tmp_path))
    assert shape_of(failed) == shape_of(worked)
    assert Ledger(tmp_path / "ledger").spent == 200


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
        assert (reply.error.code, reply.error.reason) == (2, reasons.FAILED)
    assert COORDINATE.encode() not in b"".join(deflated(reply).values()) + repr(vars(reply.metadata)).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(COORDINATE.encode() in path.read_bytes() for path in files)
    assert COORDINATE in caplog.text


def test_a_node_that_tells_its_errors_is_found(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(reasons, "explain", lambda error, *_: str(error))
    with pytest.raises(AssertionError):
        test_errors_that_hold_coordinates_stay_at_the_node(tmp_path, monkeypatch, caplog, "keeping the state")
