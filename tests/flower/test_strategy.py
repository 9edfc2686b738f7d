"""The server: its options, what it asks, what it writes, and when a training has failed."""

import inspect
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from federation import DIM, IDS, lines, make_app, model, nodes_of, one_round, strategy, target
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from sqsgd import Ledger, Task, make_scheme, seeded_rng
from sqsgd.federation.flower import ClientApp, FederationSettings, SqsgdStrategy, wire
from sqsgd.federation.flower.answers import TooFewNodes
from sqsgd.federation.flower.strategy import MOST_EMPTY_ROUNDS
from sqsgd.federation.node import policy
from sqsgd.federation.node.server import SHORT, NoAnswers
from sqsgd.training.reading import read_run

GOAL = np.mean([target(node) for node in IDS], axis=0)
BIG = ArrayRecord({"weights": Array(np.zeros(44426, np.float32))})

# ---------------------------------------------------------------- options


def test_every_option_of_flowers_is_taken_as_it_stands(caplog):
    defaults = {name: each.default for name, each in inspect.signature(FedAvg).parameters.items()}
    assert len(defaults) >= 10
    with caplog.at_level("WARNING", logger="flwr"):
        made = SqsgdStrategy(epsilon=4.0, **defaults | {"min_available_nodes": 5, "min_train_nodes": 3})
    assert (made.min_available_nodes, made.min_train_nodes) == (5, 3)
    assert "weighted_by_key is ignored: all reports weigh the same" in caplog.text


def test_settings_are_one_value_or_keywords():
    assert SqsgdStrategy(epsilon=4.0, seed=1).asked_for == FederationSettings(epsilon=4.0, seed=1)
    whole = SqsgdStrategy(
        epsilon=4, lr=1, bound=np.float32(2), clip_norm=3, bytes=np.int64(32), seed=None
    ).asked_for
    exact = (whole.epsilon, whole.lr, whole.bound, whole.clip_norm, whole.bytes, whole.seed)
    assert [type(value) for value in exact] == [float] * 4 + [int] * 2
    assert len({SqsgdStrategy(epsilon=4, **seed).asked_for.seed for seed in ({}, {}, {"seed": None})}) == 3
    with pytest.raises(TypeError, match="lr next to settings"):
        SqsgdStrategy(FederationSettings(epsilon=4.0), lr=2.0)
    with pytest.raises(TypeError, match="epsilon"):
        SqsgdStrategy()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheme": "sqsdg"}, "did you mean"),
        ({"sends": "weights"}, "sends = 'weights' must be one of delta, gradient"),
        ({"decay": "slow"}, "decay = 'slow' must be one of auto, none, linear"),
        ({"resume": True}, "needs out"),
        ({"out": "relative"}, "absolute"),
        ({"min_answers": -1}, "min-answers"),
        ({"min_train_nodes": "2"}, "min_train_nodes = '2' must be a whole number"),
        ({"arrayrecord_key": "weights"}, "arrayrecord_key = 'weights' must be 'arrays'"),
        ({"clients_per_round": 4, "min_answers": 5}, "is more than clients_per_round = 4"),
        ({"once": True}, "once = true needs clients-per-round"),
        ({"min_avalable_nodes": 3}, "'min_avalable_nodes'; did you mean 'min_available_nodes'"),
    ],
)
def test_invalid_options_are_named_with_what_to_write_instead(changes, words):
    with pytest.raises((ValueError, TypeError), match=words):
        strategy(**changes)


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-paper", "dgc", "fedsel", "privunit-index", "vqsgd"])
def test_schemes_that_keep_a_residual_are_refused_with_once(name, tmp_path):
    made = SqsgdStrategy(scheme=name, epsilon=40.0, bytes=32, once=True, clients_per_round=3)
    arrays = ArrayRecord({"weights": Array(np.zeros(40960, np.float32))})
    if name in ("sqsgd", "sqsgd-paper", "dgc", "fedsel"):  # they make up later for what they leave out
        with pytest.raises(ValueError, match=f"scheme = '{name}' keeps a residual"):
            made.prepare(nodes_of(tmp_path), arrays, 3)
    else:
        made.prepare(nodes_of(tmp_path), arrays, 3)


def prepared(tmp_path, arrays=BIG, **options) -> SqsgdStrategy:
    made = SqsgdStrategy(seed=1, **{"epsilon": 400.0, **options})
    made.rounds = 20
    made.prepare(nodes_of(tmp_path), arrays, 3)
    return made


@pytest.mark.parametrize(
    ("options", "name", "bound", "falls"),
    [
        ({}, "sqsgd-stateless", SHORT, True),
        ({"decay": "none"}, "sqsgd-stateless", SHORT, False),
        ({"sends": "gradient"}, "sqsgd-stateless", 0.3, True),  # twenty rounds
        ({"scheme": "sqsgd"}, "sqsgd", SHORT, True),
        ({"options": {"code": "signs"}}, "sqsgd", 1.0, False),  # reports with norms follow them
        ({"options": {"code": "signs"}, "decay": "linear"}, "sqsgd", 1.0, True),
        ({"options": {"code": "sparse"}}, "sqsgd", SHORT, True),
        ({"bound": 0.5}, "sqsgd-stateless", 0.5, True),
        # where the stateless scheme would not use sparse codes, its default rate would not suit them
        ({"arrays": ArrayRecord({"w": Array(np.zeros(20, np.float32))})}, "sqsgd", 1.0, False),
    ],
)
def test_what_is_chosen(tmp_path, options, name, bound, falls):
    made = prepared(tmp_path, **options)
    assert (made.scheme.name, made.settings.bound) == (name, bound)
    assert made.settings.decay == ("linear" if falls else "none")


def test_factors_that_no_residual_has_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"alpha = 0\.5, beta = 1: 'sqsgd-stateless' keeps no residual"):
        prepared(tmp_path, scheme="sqsgd-stateless", alpha=0.5)


def test_a_small_change_is_not_reported_by_the_toss_of_a_coin():
    """Cosines of single reports about a change of length .05: all of one sign with the default bound."""
    dim = 44426
    change = np.random.default_rng(1).standard_normal(dim).astype(np.float32)
    change *= np.float32(0.05) / np.linalg.norm(change)
    scheme = make_scheme("sqsgd-stateless", dim=dim, epsilon=400.0, bytes=256)

    def signs(bound):
        task = Task(round=0, client=0, seed=1, dim=dim, bound=bound)
        reports = [scheme.decode(scheme.encode(change, task, seeded_rng(i)), task) for i in range(24)]
        return [float(report @ change) > 0 for report in reports]

    assert all(signs(SHORT))
    assert 4 < sum(signs(1.0)) < 20


def test_the_first_step_is_as_long_under_any_bound(tmp_path):
    """A given rate is the length of the step where nobody chose the bound."""
    for options in ({}, {"bound": 1.0}, {"lr": 1.25}):
        settings = prepared(tmp_path, **options).settings
        assert settings.lr * settings.bound == pytest.approx(1.25)
    assert prepared(tmp_path, bound=0.1, lr=0.5).settings.lr == 0.5
    assert prepared(tmp_path, sends="gradient", lr=0.5).settings.lr == 0.5
    falling = prepared(tmp_path, decay="linear").settings.lr
    assert prepared(tmp_path, decay="none").settings.lr == falling / 2


def test_on_a_deployed_server_an_app_that_names_no_folder_is_saved_and_resumed(tmp_path, monkeypatch):
    """And one that names a folder keeps to it."""
    monkeypatch.setenv("SQSGD_RUN", str(tmp_path / "run.json"))
    for resume, rounds in ((False, 2), (True, 3)):
        run = {"out": str(tmp_path / "run-1"), "resume": resume}
        (tmp_path / "run.json").write_text(json.dumps(run))
        strategy().start(nodes_of(tmp_path / "nodes"), model(), num_rounds=rounds)
        assert len(lines(tmp_path / "run-1/metrics.jsonl")) == rounds
        assert (tmp_path / "run-1/model.safetensors").exists()
    strategy(out=tmp_path / "mine").start(nodes_of(tmp_path / "others"), model(), num_rounds=1)
    assert (tmp_path / "mine/model.safetensors").exists()


def test_with_only_the_clients_line_replaced_the_server_is_told(tmp_path, caplog):
    """A plain FedAvg at the server: nothing is computed, nothing is paid, and the log says why."""
    calls = []
    nodes = nodes_of(tmp_path, make_app(calls=calls))
    nodes.send_and_receive = lambda messages, timeout=None: nodes.pull_messages(nodes.push_messages(messages))
    with caplog.at_level("INFO"):
        FedAvg(min_available_nodes=3).start(nodes, model(), num_rounds=1)
    told = f"error in reply from node {IDS[0]}: {policy.NOT_ASKED}"
    assert caplog.text.count(told) == 2  # to train, and to evaluate
    assert calls == []
    assert not list(tmp_path.glob("*/ledger"))


def test_what_rounds_cost_and_cannot_teach_is_in_the_log_before_anyone_is_asked(tmp_path, caplog):
    with caplog.at_level("INFO", logger="flwr"):
        prepared(tmp_path)
        assert "20 reports of a node spend 8000" in caplog.text
        assert "little or nothing will be learned" not in caplog.text
        prepared(tmp_path, epsilon=0.5, bytes=8)
    assert "little or nothing will be learned from 60 reports" in caplog.text


# ---------------------------------------------------------------- what is asked


def distance(arrays: ArrayRecord) -> float:
    return float(np.linalg.norm(wire.flatten_record(arrays)[1] - GOAL) / np.linalg.norm(GOAL))


@pytest.mark.parametrize("sends", ["gradient", "delta"])
def test_training_reaches_the_goal(tmp_path, sends):
    made, measured = strategy(sends=sends, lr=0.0), []

    def evaluate(round, arrays):
        measured.append(distance(arrays))
        return MetricRecord({"accuracy": 1 - measured[-1]})

    nodes = nodes_of(tmp_path, make_app(sends=sends))
    result = made.start(nodes, model(), num_rounds=20, evaluate_fn=evaluate)
    assert measured[-1] < 0.25 < measured[0]
    assert distance(result.arrays) == measured[-1]
    assert list(result.arrays) == ["first", "second"]


def test_a_messages_name_cannot_be_told_by_another_node(tmp_path, monkeypatch):
    """Flower takes a reply in anybody's name from whoever knows the message that it replies to."""
    monkeypatch.setattr("flwr.app.message.message.now", lambda: datetime.fromtimestamp(1e9, UTC))

    def messages():
        return strategy().configure_train(1, model(), ConfigRecord(), nodes_of(tmp_path))

    first, second = messages(), messages()
    assert not {message.object_id for message in first} & {message.object_id for message in second}
    for message in first + second:  # but for this, a name is a hash of what every node knows or can guess
        assert len(bytes.fromhex(message.metadata.group_id)) == 16
        message.metadata.__dict__["_group_id"] = ""
    assert [message.object_id for message in first] == [message.object_id for message in second]


def test_as_many_are_waited_for_and_asked_as_is_said(tmp_path):
    with pytest.raises(TooFewNodes, match="3 nodes are connected, 4 are needed"):
        strategy(min_available_nodes=4, wait_timeout=0.2).start(nodes_of(tmp_path), model())
    for least, asked in ((0, 1), (2, 2)):
        made = strategy(fraction_train=0.4, min_train_nodes=least)
        messages = made.configure_train(1, model(), ConfigRecord(), nodes_of(tmp_path))
        assert len(messages) == asked


def arrays(more) -> ArrayRecord:
    return ArrayRecord({"first": Array(np.zeros(200, np.float32)), "more": Array(more)})


@pytest.mark.parametrize(
    "more",
    [
        np.array(1, np.float32), np.array(1.0), np.ones((2, 3), np.float16), np.zeros((0, 3), np.float32),
        np.array(3), np.zeros(0, np.int64), np.array(True),
    ],
    ids=["a number", "a double", "halves", "empty", "a count", "no counts", "a flag"],
)  # fmt: skip
def test_arrays_reach_the_app_in_their_own_shape(tmp_path, more):
    """A single number stays one: as an array of one number no model would take it back. Its type stays."""
    seen, app = [], ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        seen.append(msg.content["arrays"]["more"].numpy())
        structure, weights = wire.flatten_record(msg.content["arrays"])
        content = RecordDict({"gradient": wire.model_record(structure, np.ones_like(weights))})
        return Message(content, reply_to=msg)

    result = strategy().start(nodes_of(tmp_path, app), arrays(more), num_rounds=2)
    for array in [*seen, result.arrays["more"].numpy()]:
        assert (array.shape, array.dtype) == (more.shape, more.dtype)
    assert np.mean(result.arrays["first"].numpy()) < 0  # what the app computed was reported


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (np.zeros(2, np.longdouble), "array 'more' is .*: weights must be float32, float64 or float16"),
        (np.zeros(2, complex), "array 'more' is complex128"),
        (np.full(2, np.nan, np.float32), r"the model's weights\[200\] = nan must be finite"),
    ],
)
def test_what_cannot_be_trained_is_named_before_anyone_is_asked(tmp_path, more, words):
    nodes = nodes_of(tmp_path)
    with pytest.raises(ValueError, match=words):
        strategy().start(nodes, arrays(more), num_rounds=1)
    assert not nodes.sent


# ---------------------------------------------------------------- what is written


def test_what_is_written_down(tmp_path):
    made = strategy(out=tmp_path / "run", evaluate_every=2)
    made.start(
        nodes_of(tmp_path), model(), num_rounds=3, evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5})
    )
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["round"] for line in written] == [0, 1, 2]
    assert ["accuracy" in line for line in written] == [False, True, True]
    assert [line["epsilon_total"] for line in written] == [200.0, 400.0, 600.0]
    first = written[0]
    assert (first["clients"], first["asked"], first["rejected"]) == (3, 3, [])
    assert first["bytes_up"] == made.scheme.bits // 8 < 4 * DIM < first["bytes_down"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["finished"], summary["accuracy"]) == (3, True, 0.5)
    assert (tmp_path / "run" / "model.safetensors").exists()
    noted = lines(tmp_path / "5" / "answers.jsonl")
    assert [entry["payload_bytes"] for entry in noted] == [first["bytes_up"]] * 3


# ---------------------------------------------------------------- trainings that fail


def test_the_total_counts_reports_that_came_too_late(tmp_path):
    """They were paid for all the same; no other node answers more often, so the largest total is theirs."""
    nodes = nodes_of(tmp_path)
    nodes.spoil = lambda node, _, reply: None
    with pytest.raises(NoAnswers, match=r"no answer within 0\.2 s"):
        strategy(out=tmp_path / "run").start(nodes, model(), num_rounds=2, timeout=0.2)
    assert [line["clients"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [0, 0]
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["epsilon_total"] == 400.0
    assert {Ledger(tmp_path / str(node) / "ledger").spent for node in IDS} == {400}


def test_spent_budgets_leave_the_model_and_end_the_training(tmp_path):
    made = strategy(out=tmp_path / "run")
    with pytest.raises(NoAnswers, match=f"0 of 3 that were asked .3: {policy.SPENT}.*budgets may be spent"):
        made.start(nodes_of(tmp_path, max_epsilon=450.0), model(), num_rounds=99)
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["clients"] for line in written] == [3, 3] + [0] * MOST_EMPTY_ROUNDS
    assert {entry["reason"] for entry in written[-1]["rejected"]} == {policy.SPENT}
    assert written[-1]["epsilon_total"] == 400.0
    assert read_run(tmp_path / "run").status == "unfinished at round 12 of 99"


@pytest.mark.parametrize(("cap", "reason"), [(150.0, policy.NOT_ALLOWED), (250.0, policy.SPENT)])
def test_a_training_that_nobody_answered_fails(tmp_path, cap, reason):
    """Three rounds, fewer than end a training early, with owners who refuse or have nothing left."""
    nodes = nodes_of(tmp_path, max_epsilon=cap)
    if reason == policy.SPENT:
        strategy().start(nodes, model(), num_rounds=1)
        nodes._run_id = 8
    with pytest.raises(NoAnswers, match=f"none of 3 rounds had enough answers.*: {reason}"):
        strategy(out=tmp_path / "run").start(nodes, model(), num_rounds=3)
    assert not (tmp_path / "run/model.safetensors").exists()
    assert not (tmp_path / "run/summary.json").exists()
    assert [line["stepped"] for line in lines(tmp_path / "run/metrics.jsonl")] == [False] * 3


@pytest.mark.parametrize(("answering", "moves"), [(1, False), (4, False), (5, True)])
def test_one_report_of_many_does_not_move_the_model(tmp_path, answering, moves):
    nodes = nodes_of(tmp_path, ids=range(10, 20))
    nodes.spoil = lambda node, _, reply: reply if node < 10 + answering else None
    made = strategy()
    after = one_round(made, nodes)
    assert (np.any(wire.flatten_record(after)[1]), made.stepped) == (moves, moves)
