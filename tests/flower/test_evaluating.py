"""Evaluations over Flower: one number up per node, the mean with its interval at the server."""

import json
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from federation import (
    IDS,
    answer,
    deflated,
    lines,
    make_app,
    message,
    model,
    node_context,
    nodes_of,
    payload_of,
    request,
    strategy,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sqsgd import Ledger
from sqsgd.flower import SqsgdMod, cohort, wire
from sqsgd.flower.evaluating import NodeEvaluations
from sqsgd.mechanisms.one_number import OneNumber
from sqsgd.node import reasons
from sqsgd.node.evaluation import evaluation_scheme
from sqsgd.report.page import write_report

EPSILON = 40.0
"""At this one, a number is nearly certain to be within 1/255: no test is left to chance."""
ALLOWED = {"evaluate_epsilon": EPSILON}
MECHANISM = OneNumber(epsilon=EPSILON)
SCHEME = evaluation_scheme("accuracy", MECHANISM)


def accurate(values=None, seen=None):
    """An app whose ``evaluate`` finds a value for each node, and tells more than it should."""

    def evaluate(msg, context):
        if seen is not None:
            seen.append((context.node_id, wire.flatten_record(msg.content["arrays"])[1]))
        value = 0.5 if values is None else values[context.node_id]
        metrics = MetricRecord({"accuracy": value, "loss": 1.5, "num-examples": 77})
        return Message(RecordDict({"metrics": metrics, "more": ArrayRecord()}), reply_to=msg)

    return make_app(evaluate=evaluate)


def evaluation(round=0, epsilon=EPSILON, metric="accuracy", **changes):
    scheme = evaluation_scheme(metric, OneNumber(epsilon=epsilon))
    fields = {"scheme": "evaluation", "options": {"metric": metric}, "epsilon": epsilon, "bits": 136}
    fields |= {"bound": 1.0, "fingerprint": scheme.fingerprint, "round": round}
    return request(**{**fields, **changes})


# ---------------------------------------------------------------- at a node


def test_one_number_leaves_and_nothing_else(tmp_path):
    """Neither the number of examples nor other metrics, nor anything of the size of a model."""
    reply = answer(evaluation(), node_context(5, tmp_path, **ALLOWED), accurate(), kind="evaluate")
    assert list(reply.content) == [wire.REPORT]
    assert list(reply.content[wire.REPORT]) == [wire.PAYLOAD]
    assert len(payload_of(reply)) == 17 == SCHEME.bits // 8
    bare = make_app(mod=lambda msg, context, call_next: call_next(msg, context))
    assert "metrics" in bare(message(evaluation(), kind="evaluate"), node_context(5, tmp_path)).content


def test_it_is_off_by_default(tmp_path):
    seen = []
    for config in ({}, {"evaluate_epsilon": 39.5}):
        context = node_context(5, tmp_path, **config)
        reply = answer(evaluation(), context, accurate(seen=seen), kind="evaluate")
        assert (reply.error.code, reply.error.reason) == (6, reasons.NOT_ALLOWED)
    assert seen == []
    assert not (tmp_path / "ledger").exists()


def failing(kind):
    app = ClientApp(mods=[SqsgdMod()])

    @app.evaluate()
    def evaluate(msg, context):
        if kind == "raises":
            raise RuntimeError("the patient's name is Eve")
        if kind == "error":
            return Message(Error(17, "Eve"), reply_to=msg)
        metrics = {"another": {"loss": 0.1}, "nan": {"accuracy": math.nan}, "list": {"accuracy": [0.5]}}
        records = {"metrics": MetricRecord(metrics.get(kind, {"accuracy": 0.5}))}
        if kind == "twice":
            records["more"] = MetricRecord({"accuracy": 0.7})
        return Message(RecordDict({} if kind == "empty" else records), reply_to=msg)

    return app


@pytest.mark.parametrize("kind", ["raises", "error", "another", "nan", "list", "twice", "empty"])
def test_a_failing_app_is_answered_for_in_the_same_form(tmp_path, kind):
    """A paid report; tests/node/test_evaluation.py has its law. The owner sees that it failed."""
    app = failing(kind)
    failed = answer(evaluation(), node_context(5, tmp_path, **ALLOWED), app, kind="evaluate")
    worked = answer(evaluation(), node_context(5, tmp_path / "b", **ALLOWED), accurate(), kind="evaluate")
    assert [len(part) for part in deflated(failed).values()] == [
        len(part) for part in deflated(worked).values()
    ]
    assert b"Eve" not in b"".join(deflated(failed).values())
    assert SCHEME.open(payload_of(failed), evaluation(dim=1).task)
    assert Ledger(tmp_path / "ledger").spent == Ledger(tmp_path / "b/ledger").spent == 40
    assert lines(tmp_path / "answers.jsonl")[0]["zero"]
    assert "zero" not in lines(tmp_path / "b/answers.jsonl")[0]


def test_the_app_evaluates_the_model_that_was_checked(tmp_path):
    seen = []
    changed = np.full(300, 0.5, np.float32)
    context = node_context(5, tmp_path, **ALLOWED)
    for weights, arrays in ((None, model(0.5)), (changed, model())):
        asked = evaluation() if weights is None else evaluation(weights=weights)
        reply = answer(asked, context, accurate(seen=seen), kind="evaluate", arrays=arrays)
        assert reply.error.reason == reasons.MALFORMED
    payload_of(
        answer(evaluation(weights=changed), context, accurate(seen=seen), kind="evaluate", arrays=model(0.5))
    )
    ((node, weights),) = seen
    assert node == 5
    np.testing.assert_array_equal(weights, changed)


# ---------------------------------------------------------------- at the server


ASKING = {"evaluate_epsilon": EPSILON, "evaluate_every": 2}


def test_a_training_shows_the_mean_with_its_interval(tmp_path, caplog):
    values = dict(zip(IDS, (0.9, 0.8, 0.4), strict=True))
    seen = []
    nodes = nodes_of(tmp_path, accurate(values, seen), **ALLOWED)
    made = strategy(out=tmp_path / "run", **ASKING)
    with caplog.at_level("INFO", "flwr"):
        result = made.start(nodes, model(), num_rounds=3)
    assert list(result.evaluate_metrics_clientapp) == [2, 3]  # every second, and the last
    half = MECHANISM.half_width(3, 1.0)
    written = lines(tmp_path / "run/metrics.jsonl")
    assert ["evaluation" in line for line in written] == [False, True, True]
    for number, line in ((2, written[1]), (3, written[2])):
        found, shown = line["evaluation"], result.evaluate_metrics_clientapp[number]
        assert abs(found["mean"] - 0.7) <= half
        assert found["mean"] == shown["accuracy"]
        assert (found["low"], found["high"]) == (shown["low"], shown["high"])
        assert math.isclose(found["low"], found["mean"] - half)
        assert (found["metric"], found["answers"], found["asked"], found["rejected"]) == (
            "accuracy",
            3,
            3,
            {},
        )
        assert (found["bytes_up_total"], found["epsilon"]) == (3 * 17, 40.0)
    assert re.search(r"accuracy on the data of 3 nodes: 0\.\d{3} ± 0\.005 \(95 %\), epsilon 40", caplog.text)
    assert json.loads((tmp_path / "run/summary.json").read_text())["evaluation"] == written[2]["evaluation"]
    np.testing.assert_array_equal(seen[-1][1], made.state.weights)  # the model after the round
    names = [(each.task, each.round) for each in Ledger(tmp_path / "5/ledger").entries]
    training = made.name
    assert names == [(training, 0), (training, 1), (f"{training} evaluate", 1), (training, 2),
                     (f"{training} evaluate", 2)]  # fmt: skip


def test_an_app_in_float64_evaluates_its_own_type(tmp_path):
    kinds = set()

    def evaluate(msg, context):
        kinds.update(array.numpy().dtype.name for array in msg.content["arrays"].values())
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.5})}), reply_to=msg)

    nodes = nodes_of(tmp_path, make_app(evaluate=evaluate), **ALLOWED)
    double = ArrayRecord({name: Array(array.numpy().astype(np.float64)) for name, array in model().items()})
    result = strategy(**ASKING).start(nodes, double, num_rounds=2)
    assert kinds == {"float64"}
    assert abs(result.evaluate_metrics_clientapp[2]["accuracy"] - 0.5) <= MECHANISM.half_width(3, 1.0)


def test_the_total_includes_evaluations(tmp_path):
    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    strategy(out=tmp_path / "run", **ASKING).start(nodes, model(), num_rounds=3)
    written = lines(tmp_path / "run/metrics.jsonl")
    assert [line["epsilon_total"] for line in written] == [200.0, 440.0, 680.0]
    assert Ledger(tmp_path / "5/ledger").spent == Fraction(680)
    first, second, _ = written
    assert second["bytes_up_total"] == first["bytes_up_total"] + 3 * 17
    assert second["bytes_down_total"] > 1.9 * first["bytes_down_total"]  # the model went down twice
    sizes = second["evaluation"]
    assert sizes["bytes_down_serialised_total"] > sizes["bytes_down_total"]
    page = tmp_path / "page.html"
    write_report([tmp_path / "run"], page)
    assert "3 × 200 + 80 for evaluations on its data = 680" in page.read_text()


def test_a_resumed_training_remembers_what_evaluations_cost(tmp_path):
    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    strategy(out=tmp_path / "run", decay="none", **ASKING).start(nodes, model(), num_rounds=2)
    strategy(out=tmp_path / "run", decay="none", resume=True, **ASKING).start(nodes, model(), num_rounds=3)
    assert lines(tmp_path / "run/metrics.jsonl")[-1]["epsilon_total"] == 680.0


def test_owners_who_do_not_allow_it_are_not_asked_again(tmp_path, caplog):
    contexts = nodes_of(tmp_path, accurate(), **ALLOWED)
    del contexts.contexts[IDS[0]].node_config["evaluate-epsilon"]
    strategy(out=tmp_path / "run", evaluate_epsilon=EPSILON).start(contexts, model(), num_rounds=3)
    found = [line["evaluation"] for line in lines(tmp_path / "run/metrics.jsonl")]
    assert [(each["asked"], each["answers"]) for each in found] == [(3, 2), (2, 2), (2, 2)]
    assert found[0]["rejected"] == {reasons.NOT_ALLOWED: 1}
    assert [line["clients"] for line in lines(tmp_path / "run/metrics.jsonl")] == [3, 3, 3]


def test_where_nobody_allows_it_the_training_goes_on(tmp_path, caplog):
    result = strategy(out=tmp_path / "run", **ASKING).start(nodes_of(tmp_path), model(), num_rounds=3)
    assert result.evaluate_metrics_clientapp == {}
    assert f"no node evaluated the model: {{'{reasons.NOT_ALLOWED}': 3}}" in caplog.text
    assert (tmp_path / "run/model.safetensors").exists()
    last = lines(tmp_path / "run/metrics.jsonl")[-1]
    assert (last["epsilon_total"], last.get("epsilon_evaluations")) == (600.0, None)  # nobody has paid


def test_a_node_that_trains_and_does_not_evaluate_sits_out(tmp_path):
    """Else each evaluation would wait for it until the timeout."""
    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    nodes.spoil = lambda node, asked, reply: (
        None if (node, asked.metadata.message_type) == (IDS[0], "evaluate") else reply
    )
    made = strategy(out=tmp_path / "run", evaluate_epsilon=EPSILON)
    made.start(nodes, model(), num_rounds=5, timeout=0.1)
    asked = [line["evaluation"]["asked"] for line in lines(tmp_path / "run/metrics.jsonl")]
    assert asked == [3, 3, 2, 2, 3]


def test_the_worst_value_is_questioned(tmp_path, caplog):
    nodes = nodes_of(tmp_path, accurate(dict.fromkeys(IDS, 0.0)), **ALLOWED)
    strategy(**ASKING).start(nodes, model(), num_rounds=2)
    assert "that is the worst value: do the apps return a metric 'accuracy'?" in caplog.text


def test_a_model_that_did_not_move_is_not_paid_for_twice(tmp_path):
    """Too few answers in the first and the third of four rounds."""
    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    count = []

    def spoil(node, sent, reply):
        if sent.metadata.message_type == "evaluate":
            return reply
        count.append(node)
        return None if (len(count) - 1) // 3 in (0, 2) else reply

    nodes.spoil = spoil
    made = strategy(out=tmp_path / "run", evaluate_epsilon=EPSILON)
    made.silent.update = lambda *_: None  # or they would sit out
    made.start(nodes, model(), num_rounds=4, timeout=0.2)
    written = lines(tmp_path / "run/metrics.jsonl")
    assert [line["stepped"] for line in written] == [False, True, False, True]
    assert ["evaluation" in line for line in written] == [False, True, False, True]
    names = [each.task for each in Ledger(tmp_path / "5/ledger").entries]
    assert sum(name.endswith(" evaluate") for name in names) == 2


def test_a_reply_that_is_not_valid_does_not_count(tmp_path, monkeypatch):
    """Of another round or node, in the clear, or too long: each is left out, with a reason."""
    monkeypatch.setattr(cohort, "PATIENCE", 10)  # so that the same nodes are asked in all rounds
    kept = {}

    def spoil(node, sent, reply):
        if sent.metadata.message_type != "evaluate":
            return reply
        number = sent.content[wire.CONFIG]["server-round"]
        kept[node, number] = payload_of(reply)
        if number == 1 or node == IDS[0]:
            return reply
        content = {
            2: wire.report_content(kept[node, 1]),  # a replay
            3: wire.report_content(kept[IDS[0], number]),  # another node's
            4: RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}),
            5: wire.report_content(payload_of(reply) + b"\0"),
            6: RecordDict({**wire.report_content(payload_of(reply)), "more": ConfigRecord()}),
        }[number]
        return Message(content, reply_to=sent)

    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    nodes.spoil = spoil
    strategy(out=tmp_path / "run", evaluate_epsilon=EPSILON).start(nodes, model(), num_rounds=6, timeout=20)
    found = [line["evaluation"] for line in lines(tmp_path / "run/metrics.jsonl")]
    assert [each["answers"] for each in found] == [3, 1, 1, 1, 1, 1]
    reasons_given = [list(each["rejected"]) for each in found[1:]]
    for given, words in zip(
        reasons_given, ("for round 0", "damaged", "1 records", "18 bytes", "2 records"), strict=True
    ):
        assert len(given) == 1
        assert words in given[0]


def test_flowers_own_calls_ask_and_average(tmp_path):
    """As its own loop would call them; no reply counts twice."""
    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    made = strategy(evaluate_epsilon=EPSILON)
    asked = made.configure_train(1, model(), ConfigRecord(), nodes)
    made.aggregate_train(1, nodes.send_and_receive(asked))
    sent = made.configure_evaluate(1, model(), ConfigRecord({"mine": 3}), nodes)
    assert [each.metadata.message_type for each in sent] == ["evaluate"] * 3
    assert sent[0].content["config"] == {"mine": 3, "server-round": 1}
    assert len({each.metadata.group_id for each in sent}) == 3
    replies = list(nodes.send_and_receive(sent))
    found = made.aggregate_evaluate(1, replies * 2)
    assert abs(found["accuracy"] - 0.5) < 0.005
    assert made.evaluation.last["answers"] == 3
    assert made.aggregate_evaluate(1, replies) is None  # nobody was asked since
    assert strategy().configure_evaluate(1, model(), ConfigRecord(), nodes) == []


def test_a_fraction_of_the_nodes_is_drawn_for_each_round(tmp_path):
    nodes = nodes_of(tmp_path, accurate(), ids=range(10, 20), **ALLOWED)
    made = strategy(evaluate_epsilon=EPSILON, fraction_evaluate=0.3)
    made.start(nodes, model(), num_rounds=4)
    asked = [each for each in nodes.sent if each.metadata.message_type == "evaluate"]
    drawn = [each.metadata.dst_node_id for each in asked]
    assert len(drawn) == 12
    rounds = [set(drawn[start : start + 3]) for start in (0, 3, 6, 9)]
    assert all(len(each) == 3 for each in rounds)
    assert len(set().union(*rounds)) > 3


def test_the_loss_has_a_public_maximum(tmp_path):
    nodes = nodes_of(tmp_path, accurate(), **ALLOWED)
    made = strategy(evaluate_epsilon=EPSILON, evaluate_metric="loss", evaluate_maximum=4.0)
    result = made.start(nodes, model(), num_rounds=1)
    found = result.evaluate_metrics_clientapp[1]
    assert abs(found["loss"] - 1.5) <= MECHANISM.half_width(3, 4.0)


def test_evaluation_is_refused_where_nodes_report_once():
    """Numbers under the nodes' own names are not covered by the guarantee of a secret order."""
    once = {"once": True, "clients_per_round": 4, "scheme": "privunit-index", "epsilon": 8.0}
    with pytest.raises(ValueError, match="evaluate-epsilon with once = true"):
        strategy(**once, evaluate_epsilon=1.0)
    strategy(**once)


def test_options_are_checked(caplog):
    some = {"fraction": 0.0, "every": 1, "once": False}
    for arguments, words in [
        ((-1.0, "accuracy", 1.0), "evaluate-epsilon"),
        ((1.0, "accuracy", 0.0), "evaluate-maximum"),
        ((1.0, "accuracy", 1e13), "evaluate-maximum"),
        ((1e-7, "accuracy", 1.0), "epsilon"),
    ]:
        with pytest.raises(ValueError, match=words):
            NodeEvaluations(*arguments, **some)
    assert "fraction_evaluate is ignored" not in caplog.text
    strategy(fraction_evaluate=0.5)
    assert "fraction_evaluate is ignored" in caplog.text
