"""Nodes and apps that are not set up as they must be, and the files of one that is."""

from federation import answer, lines, make_app, message, model, node_context, payload_of, request
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from sqsgd import Ledger
from sqsgd.flower import SqsgdMod, wire
from sqsgd.node import reasons


def test_a_node_that_was_not_set_up_answers_nothing(tmp_path):
    calls = []
    for config in ({"state_dir": str(tmp_path)}, {"max_epsilon": 10.0}, {}):
        reply = answer(request(), node_context(5, None, **config), make_app(calls=calls))
        assert reply.error.reason == reasons.NOT_ALLOWED
    assert calls == []
    assert "max-epsilon is not set" in lines(tmp_path / "refusals.jsonl")[0]["reason"]


def test_a_server_without_the_strategy_gets_nothing(tmp_path):
    sent = message(request())
    del sent.content[wire.REQUEST]
    assert make_app()(sent, node_context(5, tmp_path)).error.reason == reasons.MALFORMED


def test_arrays_that_do_not_fit_the_model_are_not_told(tmp_path):
    """What an app returns depends on its data, the number of arrays too."""
    app = ClientApp(mods=[SqsgdMod()])
    app.train()(lambda msg, context: Message(RecordDict({"arrays": model(), "more": model()}), reply_to=msg))
    payload_of(app(message(request()), node_context(5, tmp_path)))
    assert Ledger(tmp_path / "ledger").spent == 200
