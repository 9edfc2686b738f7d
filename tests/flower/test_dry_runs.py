"""Apps whose replies do not fit the model: refused before anything is paid, or counted for their owner."""

import json

import numpy as np
import pytest
from federation import DIM, answer, lines, message, model, node_context, payload_of, request
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from sqsgd import Ledger
from sqsgd.deploy.training import node_status
from sqsgd.flower import ClientApp, wire
from sqsgd.node import answer as node_answer
from sqsgd.node import reasons


def complex_model(msg: Message) -> Message:
    """The model in complex numbers."""
    arrays = {
        name: Array(array.numpy().astype(np.complex128)) for name, array in msg.content["arrays"].items()
    }
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=msg)


def app_of(train, dry_run=None) -> ClientApp:
    app = ClientApp(dry_run=dry_run)
    app.train()(train)
    return app


def same(msg, context):
    return Message(RecordDict({"arrays": msg.content["arrays"]}), reply_to=msg)


FORMS = {
    "numbers of another kind": (lambda msg, context: complex_model(msg), "complex128"),
    "two records": (
        lambda msg, context: Message(RecordDict({"a": model(), "b": model()}), reply_to=msg),
        "2 ArrayRecords",
    ),
    "another name": (
        lambda msg, context: Message(
            RecordDict({"arrays": ArrayRecord({"x": Array(np.zeros(DIM, np.float32))})}), reply_to=msg
        ),
        "names differ",
    ),
    "an exception": (lambda msg, context: {}["no such layer"], "no such layer"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_misfit_app_is_refused_and_pays_nothing(tmp_path, form):
    """The dry run shows it; the app itself never runs, and the server is told why."""
    (dry_run, word), calls = FORMS[form], []
    app = app_of(lambda msg, context: calls.append(msg), dry_run)
    reply = app(message(request()), node_context(5, tmp_path))
    assert reply.error.reason == reasons.MISFIT
    assert word in lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert calls == []
    assert not (tmp_path / "ledger").exists()


def test_the_dry_run_is_made_once_and_what_fits_is_answered(tmp_path):
    calls = []

    def dry_run(msg, context):
        calls.append((tmp_path / "ledger").exists() or dict(context.node_config) or dict(context.state))
        return same(msg, context)

    context, app = node_context(5, tmp_path), app_of(same, dry_run)
    context.state["own"] = ConfigRecord({"secret": 7})
    for round in range(3):
        payload_of(app(message(request(round=round)), context))
    assert calls == [{}]  # once, before anything was paid, and without the node's configuration and state
    assert Ledger(tmp_path / "ledger").spent == 600


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (FORMS["two records"][0], node_answer.MISFIT),
        (FORMS["an exception"][0], node_answer.FAILED),
        (
            lambda msg, context: Message(
                RecordDict({"gradient": wire.model_record(*_with_nan(msg))}), reply_to=msg
            ),
            node_answer.NOT_ENCODED,
        ),
    ],
)
def test_reports_of_zero_are_counted_for_the_owner_alone(tmp_path, train, why):
    (tmp_path / "node.conf").write_text("max-epsilon=1e6\n")
    context = node_context(5, tmp_path / "state")
    failed = app_of(train)(message(request()), context)
    payload_of(answer(request(round=1), context))
    assert why.encode() not in json.dumps(repr(failed.content)).encode()
    zeros = [line.get("zero") for line in lines(tmp_path / "state/answers.jsonl")]
    assert zeros == [why, None]
    found = node_status(tmp_path)
    assert (found["answers"], found["zeros"], found["last_zero"]) == (2, 1, why)


def _with_nan(msg):
    structure, weights = wire.flatten_record(msg.content["arrays"])
    weights[7] = np.nan
    return structure, weights
