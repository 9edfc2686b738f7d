"""A node's own mod around an app: whatever the app is like, one report leaves."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")

import flwr.clientapp
from federation import lines, make_app, message, node_context, payload_of, request
from flwr.app import Error, Message

from sqsgd import Ledger
from sqsgd.federation.flower import Simulation, SqsgdMod, wire
from sqsgd.federation.flower.guard import WrappedApp
from sqsgd.federation.node import policy
from sqsgd.federation.node.policy import Refused


def spoil(msg, context, call_next):
    """A mod of an app's author: what comes from further in leaves in the clear."""
    reply = call_next(msg, context)
    reply.content["leak"] = msg.content["arrays"]
    return reply


def with_lifespan(app, where):
    @app.lifespan()
    def lifespan(context):
        if where == "before":
            raise ValueError("patient 7")
        yield
        raise ValueError("patient 7")

    return app


def plain(*mods):
    """An app with these mods, whose functions are those of ``make_app``."""
    bare = make_app(lambda msg, context, call_next: call_next(msg, context))
    app = flwr.clientapp.ClientApp(mods=list(mods))
    app.train()(bare)
    app.evaluate()(bare)
    return app


def failing(msg, context, call_next):
    raise ValueError("patient 7")


def error_reply(msg, context, call_next):
    return Message(Error(2, "patient 7"), reply_to=msg)


APPS = {
    "no mod": lambda: plain(),
    "a mod of its own": lambda: plain(SqsgdMod()),
    "a mod that is not outermost": lambda: plain(spoil, SqsgdMod()),
    "two mods": lambda: plain(SqsgdMod(), SqsgdMod()),
    "another mod": lambda: plain(spoil),
    "a failing mod": lambda: plain(failing),
    "an error": lambda: plain(error_reply),
    "lifespan before": lambda: with_lifespan(plain(), "before"),
    "lifespan after": lambda: with_lifespan(plain(SqsgdMod()), "after"),
    "nothing registered": lambda: flwr.clientapp.ClientApp(),
}


@pytest.mark.parametrize("kind", APPS)
def test_nothing_else_leaves(tmp_path, kind):
    app = WrappedApp(APPS[kind]())
    reply = app(message(request()), node_context(5, tmp_path))
    assert list(reply.content) == [wire.REPORT]
    assert list(reply.content[wire.REPORT]) == [wire.PAYLOAD]
    assert [entry.round for entry in Ledger(tmp_path / "ledger").entries] == [0]
    for other in ("evaluate", "query"):
        refused = app(message(request(round=1), kind=other), node_context(5, tmp_path))
        assert refused.error.reason in policy.UNPAID
    assert len(lines(tmp_path / "answers.jsonl")) == 1


@pytest.mark.parametrize("trusted", [False, True])
def test_the_checks_of_other_apps_tell_nothing(tmp_path, trusted):
    """What they tell is not paid for, and an author may have let them look at data."""

    def check(context):
        raise Refused("patient 7")

    app = WrappedApp(make_app(SqsgdMod(check=check)), trusted=trusted)
    assert app(message(request()), node_context(5, tmp_path)).has_error() == trusted
    assert (tmp_path / "ledger").exists() != trusted


def test_an_app_that_uses_ray_is_not_a_simulation(tmp_path, monkeypatch):
    """Flower's simulation needs neither a folder nor a cap; an author's own use of Ray changes nothing."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    bare = WrappedApp(make_app())(message(request()), node_context(5, None))
    assert bare.error.reason == policy.NOT_ALLOWED


def test_no_app_simulates_on_a_wrapping_node(tmp_path):
    """Seeded noise would be known to whoever reads the app."""
    seeded, asked = SqsgdMod(simulation=Simulation(seed=1)), request(epsilon=5.0)
    alone = [payload_of(make_app(seeded)(message(asked), node_context(5, None))) for _ in range(2)]
    assert alone[0] == alone[1]
    wrapped = [
        payload_of(WrappedApp(make_app(seeded))(message(asked), node_context(5, tmp_path / str(n))))
        for n in range(2)
    ]
    assert wrapped[0] != wrapped[1]
    assert (tmp_path / "0/ledger").exists()
    refused = WrappedApp(make_app(seeded))(message(request()), node_context(5, None))
    assert refused.error.reason == policy.NOT_ALLOWED
