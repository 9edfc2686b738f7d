"""Answers: which are accepted and which rejected, and that no reply can stop a round."""

from dataclasses import replace

import numpy as np
import pytest
from federation import DIM, IDS, Nodes, lines, make_app, model, node_context, nodes_of, strategy
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

from sqsgd import make_scheme, seeded_rng
from sqsgd.federation.flower import Simulation, SqsgdMod, wire
from sqsgd.federation.flower.answers import FLOWERS, ClearReplies, exchange
from sqsgd.federation.node import policy
from sqsgd.federation.node.server import NoAnswers


def spoiled(kind: str):
    """Node 5 does something wrong in round 1."""
    last: dict[int, bytes] = {}

    def spoil(node: int, asked: Message, reply: Message) -> Message | None:
        number = asked.content[wire.REQUEST]["round"]
        if node != IDS[0] or number != 1:
            if not reply.has_error():
                last[node] = reply.content[wire.REPORT][wire.PAYLOAD]
            return reply
        payload = reply.content[wire.REPORT][wire.PAYLOAD]
        report = {
            "garbage": ConfigRecord({"payload": b"garbage"}),
            "huge": ConfigRecord({"payload": bytes(2_000_000)}),
            "replay": ConfigRecord({"payload": last[node]}),
            "stolen": ConfigRecord({"payload": last[IDS[1]]}),
            "flipped": ConfigRecord({"payload": payload[:-1] + bytes([payload[-1] ^ 1])}),
            "text": ConfigRecord({"payload": "text"}),
            "numbers": ConfigRecord({"payload": [1.0, 2.0]}),
            "more keys": ConfigRecord({"payload": payload, "loss": 1.0}),
            "arrays": model(),
        }
        if kind in report:
            return Message(RecordDict({wire.REPORT: report[kind]}), reply_to=asked)
        if kind == "no message":
            return ConfigRecord({"payload": payload}).deflate()
        if kind == "no record":  # an object of the right form whose content is noise
            return add_header_to_object_body(b"\xff" * 8, ConfigRecord())
        if kind in ("no source", "no question"):
            field = "_src_node_id" if kind == "no source" else "_reply_to_message_id"
            reply.metadata.__dict__[field] = IDS[1] if kind == "no source" else "1"
            return reply
        if kind == "late":
            return None
        if kind == "empty":
            return Message(RecordDict(), reply_to=asked)
        if kind == "error":
            return Message(Error(8, "Traceback: secrets"), reply_to=asked)
        reply.content["more"] = MetricRecord({"loss": 1.0})
        return reply

    return spoil


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("garbage", "bytes"), ("huge", "2000000 bytes"), ("replay", "another scheme, round, client"),
        ("stolen", "another scheme, round, client"),
        ("flipped", "damaged"), ("text", "not bytes"), ("numbers", "not bytes"), ("more keys", "one payload"),
        ("arrays", "one payload"), ("late", "no answer within 0.5 s"), ("empty", "0 records"),
        ("error", "the app crashed at the node"), ("more", "2 records"), ("no message", "unreadable"),
        ("no record", "unreadable"), ("no source", "another node's name"), ("no question", "another message"),
    ],
)  # fmt: skip
def test_a_bad_reply_is_rejected_and_named(tmp_path, kind, word):
    nodes = nodes_of(tmp_path)
    nodes.spoil = spoiled(kind)
    made = strategy(out=tmp_path / "run")
    made.start(nodes, model(), num_rounds=3, timeout=0.5)
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["clients"] for line in written] == [3, 2, 3]
    (entry,) = written[1]["rejected"]
    assert entry["node"] == str(IDS[0])
    assert word in entry["reason"]
    assert "secrets" not in entry["reason"]


def test_a_rejected_reply_changes_nothing(tmp_path):
    """The same model as without the node: nothing of what it sent was used."""
    models = []
    for kind in ("garbage", "late"):
        app = make_app(SqsgdMod(simulation=Simulation(seed=1)))
        nodes = Nodes(app, [node_context(i, None) for i in IDS])
        nodes.spoil = spoiled(kind)
        result = strategy().start(nodes, model(), num_rounds=3, timeout=0.3)
        models.append(wire.flatten_record(result.arrays)[1])
    np.testing.assert_array_equal(*models)


def test_a_report_fits_its_own_task_only(tmp_path):
    """Of the same round, another node's report is refused too: the checksum is bound to the client."""
    nodes, kept = nodes_of(tmp_path), {}

    def steal(node, asked, reply):
        kept.setdefault("payload", reply.content[wire.REPORT][wire.PAYLOAD])
        record = ConfigRecord({"payload": kept["payload"]})
        return Message(RecordDict({wire.REPORT: record}), reply_to=asked)

    nodes.spoil = steal
    made = strategy(out=tmp_path / "run")
    with pytest.raises(NoAnswers):
        made.start(nodes, model(), num_rounds=1)
    (line,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert line["clients"] == 1
    assert all("another scheme, round, client" in entry["reason"] for entry in line["rejected"])


def test_no_node_answers_in_anothers_name(tmp_path):
    """A well-made report for another's task, with its name on it: the other's own is the one that counts."""
    nodes, sent = nodes_of(tmp_path), {}
    scheme = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bytes=32, code="signs")

    def forge(node, asked, reply):
        if node != IDS[0]:
            sent[node] = reply.content[wire.REPORT][wire.PAYLOAD]
            return reply
        task = replace(wire.read_request(asked.content[wire.REQUEST]).task, client=IDS[1])
        payload = scheme.encode(np.full(DIM, 9, np.float32), task, seeded_rng(1))
        forged = Message(wire.report_content(payload), reply_to=asked)
        forged.metadata.__dict__["_src_node_id"] = IDS[1]
        victim = next(m for m in made.current.messages if m.metadata.dst_node_id == IDS[1])
        forged.metadata.__dict__["_reply_to_message_id"] = victim.metadata.message_id
        return forged

    nodes.spoil = forge
    made = strategy(scheme="sqsgd")
    made.start(nodes, model(), num_rounds=1, timeout=0.5)
    opened = {task.client: columns for task, columns, _ in made.current.reports}
    tasks = {task.client: task for task, _, _ in made.current.reports}
    assert opened.keys() == sent.keys()
    for node, columns in opened.items():
        assert scheme.seal(columns, tasks[node]) == sent[node]
    (entry,) = made.current.rejected
    assert entry["node"] == str(IDS[0])
    assert "another node's name" in entry["reason"]


def test_an_answer_counts_once(tmp_path):
    made, nodes = strategy(), nodes_of(tmp_path)
    messages = made.configure_train(1, model(), ConfigRecord(), nodes)
    answers = list(exchange(nodes, messages, 1.0))
    stranger = replace(answers[0], message=Message(RecordDict(), dst_node_id=999, message_type="train"))
    made.aggregate_train(1, [*answers, answers[0], stranger])
    assert (len(made.current.reports), made.current.rejected) == (3, [])


@pytest.mark.parametrize(("gone", "asked"), [(IDS, 2), (IDS[1:], 1)])
def test_a_round_whose_nodes_have_all_left_begins_again(tmp_path, gone, asked):
    """As after a restart of the federation: each node repeats the report that it has paid for."""
    nodes, sent = nodes_of(tmp_path), []

    def leave(node, asked, reply):
        sent.append((node, reply.content[wire.REPORT][wire.PAYLOAD]))
        return Message(Error(5, ""), reply_to=asked) if node in gone and len(sent) <= len(IDS) else reply

    nodes.spoil = leave
    made = strategy(out=tmp_path / "run")
    made.start(nodes, model(), num_rounds=2, timeout=5.0)
    written = lines(tmp_path / "run" / "metrics.jsonl")
    first = len(IDS) if asked == 2 else len(IDS) - len(gone)
    assert [line["clients"] for line in written] == [first, len(IDS)]
    assert len(sent) == len(IDS) * (asked + 1)
    if asked == 2:
        assert sent[: len(IDS)] == sent[len(IDS) : 2 * len(IDS)]


def test_the_order_of_arrival_does_not_matter(tmp_path):
    for order in (1, -1):
        made, nodes = strategy(), nodes_of(tmp_path / str(order))
        messages = made.configure_train(1, model(), ConfigRecord(), nodes)
        made.aggregate_train(1, list(exchange(nodes, messages, 1.0))[::order])
        assert [task.client for task, _, _ in made.current.reports] == sorted(IDS)


@pytest.mark.parametrize("reason", policy.REASONS)
def test_whoever_does_not_say_that_it_refused_may_have_paid(tmp_path, reason):
    """The total counts them: a node that failed, or whose report never came, may have spent its epsilon."""
    nodes = nodes_of(tmp_path)

    def refused(node, asked, reply):
        return Message(Error(6, reason), reply_to=asked) if node == IDS[0] else None

    nodes.spoil = refused
    made = strategy()
    with pytest.raises(NoAnswers):
        made.start(nodes, model(), num_rounds=1, timeout=0.2)
    assert made.current.may_have_paid == {*IDS[1:]} | ({IDS[0]} if reason not in policy.UNPAID else set())


def test_flowers_own_errors_are_said_in_words():
    """Each code of this version but those of our own answers, and that of an unknown error."""
    codes = {value for name, value in vars(ErrorCode).items() if name.isupper()}
    assert codes - {0, 6} <= set(FLOWERS)


# ---------------------------------------------------------------- apps without the mod


def unprotected() -> ClientApp:
    """Flower's own ClientApp, which returns the trained model and metrics."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        content = RecordDict({"arrays": model(1.0), "metrics": MetricRecord({"loss": 1.5})})
        return Message(content, reply_to=msg)

    return app


def test_the_training_stops_after_the_first_round(tmp_path):
    nodes = nodes_of(tmp_path, unprotected())
    made = strategy(sends="delta", out=tmp_path / "run")
    with pytest.raises(ClearReplies, match=r"3 of 3 nodes .* in the clear.* import ClientApp"):
        made.start(nodes, model(), num_rounds=20)
    assert len(nodes.sent) == 3
    assert not made.state.weights.any()  # nothing was trained
    assert not (tmp_path / "run/model.safetensors").exists()


def test_one_node_without_the_mod_stops_nobody(tmp_path):
    """Else any node could end a training, by sending arrays."""
    nodes = nodes_of(tmp_path)
    clear = Nodes(unprotected(), [node_context(IDS[0], tmp_path / "clear")])

    def spoil(node: int, asked: Message, reply: Message) -> Message:
        return clear.app(asked, clear.contexts[node]) if node == IDS[0] else reply

    nodes.spoil = spoil
    strategy(out=tmp_path / "run").start(nodes, model(), num_rounds=2)
    rejected = [entry["node"] for line in lines(tmp_path / "run/metrics.jsonl") for entry in line["rejected"]]
    assert rejected == [str(IDS[0])] * 2
