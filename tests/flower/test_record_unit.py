"""Privacy per record: the node draws, pays and counts; an app can only name its records."""

import contextlib
import threading
import tomllib

import numpy as np
import pytest
from federation import Nodes, lines, message, model, node_context, nodes_of, payload_of, request, strategy
from flwr.app import Array, ArrayRecord, Message, RecordDict

pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")

import torch
from test_ready_app import context as ready_context

from sqsgd import Ledger, make_scheme
from sqsgd.federation.deploy.federation import Federation
from sqsgd.federation.deploy.templates import node_settings
from sqsgd.federation.flower import ClientApp, SqsgdStrategy, correct_report, record_report
from sqsgd.federation.node import answer, policy
from sqsgd.federation.node.server import NoAnswers
from sqsgd.learning import records
from sqsgd.schemes.sqsgd_record import options_of, silo_options

DIM, COUNT, IDS = 36, 300, (5, 6, 7, 8)
OWNER = {"max_epsilon": None, "max_epsilon_per_record": 2.0, "delta": 1e-5}
CENTRES = 2 * np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)


def examples(seed, count=COUNT):
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(4, size=count)
    return CENTRES[labels] + drawn.standard_normal((count, 8)).astype(np.float32), labels


def net():
    return torch.nn.Linear(8, 4)


ZEROS = {"weight": np.zeros((4, 8), np.float32), "bias": np.zeros(4, np.float32)}


def start():
    return ArrayRecord({name: Array(value) for name, value in ZEROS.items()})


def accuracy(arrays):
    inputs, labels = examples(99, 1000)
    weight, bias = (array.numpy() for array in arrays.values())
    return float(np.mean((inputs @ weight.T + bias).argmax(1) == labels))


def record_app(train=None):
    app = ClientApp()

    @app.train()
    def named(msg, context):
        if train is not None:
            return train(msg, context)
        return record_report(msg, net(), "cross-entropy", *examples(context.node_id))

    @app.evaluate()
    def measured(msg, context):
        return correct_report(msg, net(), *examples(100 + context.node_id))

    return app


def silos(tmp_path, train=None, ids=IDS, **changes):
    return nodes_of(tmp_path, record_app(train), ids=ids, **{**OWNER, **changes})


def per_record(**changes):
    """All records in each report, which costs no search for the noise, unless a test says otherwise."""
    known = {"unit": "record", "epsilon": 2.0, "delta": 1e-5, "records": COUNT, "seed": 1, "sampling": 1.0}
    return SqsgdStrategy(**{"min_available_nodes": len(IDS), **known, **changes})


@pytest.mark.parametrize("batching", ["poisson", "disjoint"])
def test_a_training_spends_its_epsilon_and_no_more(tmp_path, batching):
    nodes, made = silos(tmp_path), per_record(out=tmp_path / "run", batching=batching, sampling=0.25)
    result = made.start(nodes, start(), num_rounds=8)
    assert accuracy(result.arrays) > 0.6
    written = lines(tmp_path / "run/metrics.jsonl")
    totals = [line["epsilon_total"] for line in written]
    assert totals == sorted(totals)
    assert totals[-1] == 2.0
    metrics = result.train_metrics_clientapp[8]
    assert (metrics["epsilon_total"], metrics["epsilon"]) == (2.0, written[-1]["epsilon"])
    for node in IDS:
        ledger = Ledger(tmp_path / f"{node}/ledger")
        assert 1.9 < float(ledger.spent) <= 2.0 == ledger.max_epsilon
        assert len(ledger.entries) == 8
    assert {line["bytes_up"] for line in written} == {made.scheme.bits // 8}


def test_a_node_whose_budget_is_spent_says_so_and_the_others_go_on(tmp_path):
    per_record(min_available_nodes=1).start(silos(tmp_path, ids=IDS[:1]), start(), num_rounds=4)
    made, nodes = per_record(out=tmp_path / "run"), silos(tmp_path, max_epsilon_per_record=2.5)
    nodes._run_id = 8
    made.start(nodes, start(), num_rounds=4)
    written = lines(tmp_path / "run/metrics.jsonl")
    assert [line["clients"] for line in written] == [3] * 4
    assert [line["refused"] for line in written] == [1] * 4
    assert {entry["reason"] for line in written for entry in line["rejected"]} == {policy.SPENT}
    assert float(Ledger(tmp_path / f"{IDS[0]}/ledger").spent) <= 2.0


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ({"max_epsilon_per_record": 1.9}, "epsilon = 2.0 is above this node's max-epsilon-per-report"),
        ({"delta": 1e-6}, "delta = 1e-05 is above this node's delta = 1e-06"),
        ({"schemes": "sqsgd"}, "scheme = 'sqsgd-record' is not among this node's schemes"),
        ({"max_epsilon": 9.0}, "a ledger has one cap"),
        ({"delta": None}, "delta is not set"),
        ({"max_epsilon": 9.0, "max_epsilon_per_record": None, "delta": None, "schemes": "sqsgd-record"},
         "no cap per record"),
    ],
)  # fmt: skip
def test_what_the_owner_did_not_allow_is_refused_unpaid(tmp_path, owner, words):
    with pytest.raises(NoAnswers, match=policy.NOT_ALLOWED):
        per_record().start(silos(tmp_path, **owner), start(), num_rounds=1)
    assert words in lines(tmp_path / "5/refusals.jsonl")[0]["reason"]
    assert not (tmp_path / "5/ledger").exists()


def test_a_ledger_keeps_its_unit(tmp_path):
    Ledger.create((tmp_path / "5").mkdir() or tmp_path / "5/ledger", max_epsilon=100.0)
    with pytest.raises(NoAnswers, match=policy.LEDGER):
        per_record(min_available_nodes=1).start(silos(tmp_path, ids=IDS[:1]), start(), num_rounds=1)
    assert "a ledger keeps its unit" in lines(tmp_path / "5/refusals.jsonl")[0]["reason"]


# ---------------------------------------------------------------- what an app cannot get wrong

ALMOST_EXACT = {"max_epsilon_per_record": 1e5, "delta": 1e-5}


def asked(**changes):
    """A request whose report has hardly any noise."""
    options = silo_options(2e4, 1e-5, 80, COUNT, share=1.0) | {"levels": 2**16} | changes.pop("options", {})
    budget = {"scheme": "sqsgd-record", "epsilon": 2e4, "bytes": 200, "options": options}
    return request(start_weights(), **{**budget, "dim": DIM, "bound": 0.5, **changes})


def answered(folder, app, made=None, **more):
    """The reply, and the sum that it describes."""
    made = made or asked()
    owner = {**OWNER, **ALMOST_EXACT, **more}
    reply = app(message(made, start()), node_context(5, folder, **owner))
    return reply, made.make_scheme().decode(payload_of(reply), made.task)


def naming(made, *data, loss="cross-entropy"):
    return lambda msg, context: record_report(msg, made, loss, *(data or examples(5)))


def in_a_thread(msg, context):
    found = []

    def work():
        with contextlib.suppress(ValueError):
            found.append(naming(net())(msg, context))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def own_gradient(msg, context):
    gradient = ArrayRecord({name: Array(value + 1) for name, value in ZEROS.items()})
    return Message(RecordDict({"gradient": gradient}), reply_to=msg)


WRONG = {
    "its own gradient": own_gradient,
    "nothing": lambda msg, context: Message(RecordDict(), reply_to=msg),
    "an error": lambda msg, context: 1 / 0,
    "another model": naming(torch.nn.Linear(8, 3)),
    "a layer that mixes": naming(torch.nn.Sequential(net(), torch.nn.BatchNorm1d(4, affine=False))),
    "a loss that mixes": naming(net(), loss=lambda model, batch: (model(batch[0]) + batch[0][:, :4]).std()),
    "a count": lambda msg, context: correct_report(msg, net(), *examples(5)),
    "labels of others": naming(net(), examples(5)[0], examples(5)[1][:9]),
    "another thread": in_a_thread,
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_app_that_sums_other_records_has_a_report_of_nothing(tmp_path, kind):
    """It is paid for, and differs from others by its noise alone; the owner is told."""
    _, good = answered(tmp_path / "good", record_app())
    _, found = answered(tmp_path / "bad", record_app(WRONG[kind]))
    assert np.linalg.norm(found) < 0.01 < 0.05 < np.linalg.norm(good)
    (noted,) = lines(tmp_path / "bad/answers.jsonl")
    assert noted["zero"] == answer.ZERO_FAILED
    assert Ledger(tmp_path / "bad/ledger").spent == Ledger(tmp_path / "good/ledger").spent


@pytest.mark.parametrize("form", ["lists", "float64", "tensors"])
def test_records_come_in_any_form(tmp_path, form):
    inputs, labels = examples(5)
    data = {
        "lists": (inputs.tolist(), labels.tolist()),
        "float64": (inputs.astype(float), labels),
        "tensors": (torch.tensor(inputs), torch.tensor(labels)),
    }[form]
    _, found = answered(tmp_path / form, record_app(naming(net(), *data)))
    _, expected = answered(tmp_path / "usual", record_app())
    assert np.allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("count", [0, 1])
def test_a_node_with_fewer_records_than_a_batch_tells_its_owner_alone(tmp_path, caplog, count):
    few = naming(net(), *(part[:count] for part in examples(5)))
    with caplog.at_level("WARNING", logger="flwr"):
        reply, _ = answered(tmp_path, record_app(few))
    assert list(reply.content) == ["sqsgd.report"]
    assert f"this node has {count} records, fewer than the batch of {COUNT}" in caplog.text


def test_the_first_sum_counts_whatever_comes_after(tmp_path):
    """What an app does with it later may depend on a record: it changes nothing."""

    def twice(msg, context):
        naming(net())(msg, context)
        return naming(net(), *examples(6))(msg, context)

    _, found = answered(tmp_path, record_app(twice))
    _, once = answered(tmp_path / "once", record_app())
    assert np.allclose(found, once, atol=5e-3)


def broken(value):
    """The records of node 5, the last of which is wrong; None: it has no such class, so its loss raises."""
    inputs, labels = (part.copy() for part in examples(5))
    if value is None:
        labels[-1] = 7
    else:
        inputs[-1] = value
    return naming(net(), inputs, labels)


@pytest.mark.parametrize("value", [np.nan, np.inf, None])
def test_one_wrong_record_is_left_out_and_the_owner_alone_is_told(tmp_path, value):
    without = naming(net(), *(part[:-1] for part in examples(5)))
    reply, found = answered(tmp_path / "wrong", record_app(broken(value)))
    other, expected = answered(tmp_path / "without", record_app(without))
    assert np.allclose(found, expected, atol=5e-3)
    assert (list(reply.content), len(payload_of(reply))) == (list(other.content), len(payload_of(other)))
    noted = [lines(tmp_path / f"{name}/answers.jsonl")[0].get("left_out") for name in ("wrong", "without")]
    assert noted == [1, None]


def test_a_node_draws_its_own_batches(tmp_path, monkeypatch):
    """Of half of its records, others each time and at each node; paid at that rate."""
    drawn, sampled = [], records.sampled
    monkeypatch.setattr(
        records, "sampled", lambda *known: drawn.append((known, sampled(*known))) or drawn[-1][1]
    )
    for folder in ("a", "b"):
        for round in (0, 1):
            answered(tmp_path / folder, record_app(), asked(round=round, options={"rate": 0.5}))
    assert [known[:2] for known, _ in drawn] == [(COUNT, 0.5)] * 4
    assert len({batch.tobytes() for _, batch in drawn}) == 4
    assert {entry.rate for entry in Ledger(tmp_path / "a/ledger").entries} == {0.5}


@pytest.mark.parametrize(
    "changes", [{"epsilon": 1e4}, {"options": {"rate": 0.5}}, {"options": {"reports": 9}}]
)
def test_the_noise_of_a_training_is_fixed_by_its_first_report(tmp_path, changes):
    """A server must not choose it by the reports before: sampled reports are accounted for together."""
    answered(tmp_path, record_app())
    sent = message(asked(round=1, **changes), start())
    reply = record_app()(sent, node_context(5, tmp_path, **{**OWNER, **ALMOST_EXACT}))
    assert reply.error.reason == policy.NOT_ALLOWED
    assert "but the training 'test' began with" in lines(tmp_path / "refusals.jsonl")[0]["reason"]


def in_turns(**changes):
    return asked(**changes, options={"batching": "disjoint", "rate": 0.25})


def test_each_record_is_used_once_a_turn(tmp_path, monkeypatch):
    used, in_turn = [], records.in_turn
    monkeypatch.setattr(records, "in_turn", lambda *known: used.append(in_turn(*known)) or used[-1])
    for round in range(5):
        answered(tmp_path, record_app(), in_turns(round=round))
    assert np.sort(np.concatenate(used[:4])).tolist() == list(range(COUNT))
    assert used[4].tolist() != used[0].tolist()
    assert len(Ledger(tmp_path / "ledger").entries) == 5


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x[:-1], lambda x: np.roll(x, 1)])
def test_records_that_change_within_a_turn_are_not_used(tmp_path, change):
    """They could be in two batches of a turn, which counts once."""

    changed = naming(net(), *(change(part).copy() for part in examples(5)))
    answered(tmp_path, record_app(), in_turns())
    _, found = answered(tmp_path, record_app(changed), in_turns(round=1))
    assert np.linalg.norm(found) < 0.01
    _, found = answered(tmp_path, record_app(changed), in_turns(round=4))  # the next turn
    assert np.linalg.norm(found) > 0.012


def test_a_node_that_does_not_know_the_turn_waits_for_the_next(tmp_path):
    owner = {**OWNER, **ALMOST_EXACT}
    answered(tmp_path, record_app(), in_turns())
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()
    reply = record_app()(message(in_turns(round=1), start()), node_context(5, tmp_path, **owner))
    assert reply.error.reason == policy.NOT_ALLOWED
    assert "it begins with the next turn" in lines(tmp_path / "refusals.jsonl")[0]["reason"]
    answered(tmp_path, record_app(), in_turns(round=4))


@pytest.mark.parametrize(
    "visits", [[(4, range(40, 44)), (5, range(50, 55)), (6, range(60, 66))], [(4, [36, 41, 42]), (4, [40])]]
)
def test_a_turn_that_a_node_forgot_is_not_drawn_again_for_nothing(tmp_path, monkeypatch, visits):
    """A server has it forget a training, and changes the length of turns or comes back to a skipped round."""
    monkeypatch.setattr(answer, "MOST_TRAININGS", 1)
    in_turn_10, in_turn = np.zeros(COUNT, int), records.in_turn

    def counted(*known):
        drawn = in_turn(*known)
        in_turn_10[drawn] += known[2] // known[1] == 10
        return drawn

    monkeypatch.setattr(records, "in_turn", counted)
    owner = {**OWNER, **ALMOST_EXACT}
    for number, (length, rounds) in enumerate(visits):
        for round in rounds:
            made = asked(round=round, options={"batching": "disjoint", "rate": 1 / length})
            reply = record_app()(message(made, start()), node_context(5, tmp_path, **owner))
            assert not number or reply.error.reason == policy.NOT_ALLOWED
        answered(tmp_path, record_app(), asked(name=f"another {number}"))
    assert in_turn_10.max() == 1
    told = lines(tmp_path / "refusals.jsonl")[0]["reason"]
    assert "turn 10 of 'test' was paid for before, and this node does not know" in told


def test_a_training_has_as_many_rounds_as_its_epsilon_is_of(tmp_path):
    reply = record_app()(message(asked(round=80), start()), node_context(5, tmp_path, **OWNER | ALMOST_EXACT))
    assert reply.error.reason == policy.NOT_ALLOWED
    assert "is of 80 rounds" in lines(tmp_path / "refusals.jsonl")[0]["reason"]


# ---------------------------------------------------------------- the server


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "patient"}, "unit = 'patient' must be one of client, record"),
        ({"scheme": "sqsgd"}, "records take 'sqsgd-record'"),
        ({"unit": "client", "scheme": "sqsgd-record"}, "records take 'sqsgd-record'"),
        ({"records": 0, "lr": 0.5}, "lr = 0.5 needs records"),
        ({"rule": "hard"}, "rule = 'hard' must be one of softmax, "),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"stop_at_epsilon": 0.1}, "stop_at_epsilon = 0.1: one round costs"),
        ({"once": True, "clients_per_round": 2}, "omit once and reports"),
        ({"evaluation_epsilon": 1.0}, "evaluation_records = 0"),
        ({"evaluation_records": 10}, "evaluation_epsilon = 0"),
    ],
)
def test_what_cannot_be_is_refused_before_anyone_is_asked(tmp_path, changes, words):
    nodes = silos(tmp_path)
    with pytest.raises(ValueError, match=words):
        per_record(**changes).start(nodes, start(), num_rounds=3)
    assert not nodes.sent


def test_batch_norm_is_refused_before_anyone_is_asked(tmp_path):
    nodes, mixing = silos(tmp_path), torch.nn.Sequential(net(), torch.nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match=r"1\.running_mean belongs to a layer that mixes .* use GroupNorm"):
        per_record().start(nodes, ArrayRecord(mixing.state_dict()), num_rounds=3)
    assert not nodes.sent


def test_it_stops_before_it_spends_more(tmp_path):
    result = per_record(stop_at_epsilon=1.2, out=tmp_path / "run").start(
        silos(tmp_path), start(), num_rounds=8
    )
    totals = [line["epsilon_total"] for line in lines(tmp_path / "run/metrics.jsonl")]
    assert totals[-1] <= 1.2 < 1.2 + (totals[-1] - totals[-2])
    assert max(float(Ledger(tmp_path / f"{node}/ledger").spent) for node in IDS) <= 1.2
    assert accuracy(result.arrays) > 0.5
    made = strategy(stop_at_epsilon=450.0, out=tmp_path / "clients")
    made.start(nodes_of(tmp_path / "others"), model(), num_rounds=9)
    assert [line["epsilon_total"] for line in lines(tmp_path / "clients/metrics.jsonl")] == [200.0, 400.0]


# ---------------------------------------------------------------- evaluations

MEASURED = {"evaluation_epsilon": 1.0, "evaluation_records": COUNT}


def test_nodes_say_how_many_they_get_right_if_their_owners_allow_it(tmp_path):
    nodes = silos(tmp_path, max_epsilon_per_record=4.0, evaluation_epsilon_per_record=1.0)
    nodes.contexts[IDS[0]].node_config.pop("evaluation-epsilon-per-record")
    made = per_record(out=tmp_path / "run", **MEASURED)
    result = made.start(nodes, start(), num_rounds=6)
    found = result.evaluate_metrics_clientapp[6]
    right = sum(accuracy_of(result.arrays, *examples(100 + node)) for node in IDS[1:]) / 3
    assert found["nodes"] == 3
    assert abs(found["accuracy"] - right) < 3 * found["accuracy_within"]
    assert found["accuracy_within"] == pytest.approx(1.96 * 3.7306 / COUNT / 3**0.5, rel=1e-3)
    assert made.measuring.rejected == [{"node": str(IDS[0]), "reason": policy.NOT_ALLOWED}]
    entries = Ledger(tmp_path / f"{IDS[1]}/ledger").entries
    assert [entry.purpose for entry in entries] == ["training"] * 6 + ["evaluation"]
    assert [entry.rate for entry in entries][-1] == 1.0
    nodes._run_id = 8  # another training: the owner gave all evaluations one epsilon together
    again = per_record(**MEASURED, epsilon=0.5).start(nodes, start(), num_rounds=1)
    assert not again.evaluate_metrics_clientapp


def accuracy_of(arrays, inputs, labels):
    weight, bias = (array.numpy() for array in arrays.values())
    return float(np.mean((inputs @ weight.T + bias).argmax(1) == labels))


def counts(**changes):
    return make_scheme("sqsgd-record", **{"dim": 1, "epsilon": 1.0, "delta": 1e-5, "levels": 2, **changes})


def start_weights():
    return np.zeros(DIM, np.float32)


def evaluation(scheme=None, purpose="evaluation"):
    scheme = scheme or counts()
    known = {"purpose": purpose, "scheme": scheme.name, "epsilon": scheme.privacy.epsilon, "bound": 1.0}
    known |= {"dim": scheme.dim, "bytes": -(-scheme.code_bits // 8), "options": options_of(scheme)}
    return request(start_weights(), **known)


@pytest.mark.parametrize(
    ("made", "kind", "words"),
    [
        (lambda: evaluation(), "train", "a message of type 'train'"),
        (lambda: evaluation(purpose="training"), "evaluate", "a message of type 'evaluate'"),
        (lambda: evaluation(counts(rate=0.5)), "evaluate", "an evaluation is one number, about all records"),
        (lambda: evaluation(counts(batching="disjoint", rate=0.5)), "evaluate", "about all records"),
        (lambda: evaluation(counts(dim=9)), "evaluate", "an evaluation is one number, about all records"),
        (lambda: evaluation(counts(epsilon=1.5)), "evaluate", "evaluation-epsilon-per-record = 1.0"),
        (lambda: request(start_weights(), purpose="evaluation", dim=DIM, epsilon=2.0), "evaluate", "notion"),
    ],
)  # fmt: skip
def test_other_evaluations_are_refused_unpaid(tmp_path, made, kind, words):
    """Above all one that is paid for at the price of a sample, since all records are counted."""
    owner = {**OWNER, "max_epsilon_per_record": 3.0, "evaluation_epsilon_per_record": 1.0}
    owner["schemes"] = "sqsgd-record,sqsgd"
    reply = record_app()(message(made(), start(), kind=kind), node_context(5, tmp_path, **owner))
    assert reply.error.reason == policy.NOT_ALLOWED
    assert words in lines(tmp_path / "refusals.jsonl")[0]["reason"]
    assert not (tmp_path / "ledger").exists()


# ---------------------------------------------------------------- the ready app, as `sqsgd deploy` sets it up


def test_the_deployments_nodes_answer_the_ready_app_per_record(tmp_path):
    from sqsgd.federation.deploy.folders import check_settings
    from sqsgd.federation.flower.ready_app import client_app, server_app

    federation = check_settings(
        Federation(unit="record", epsilon=3.0, rounds=4, nodes=2, model="linear", records=2000,
                   evaluation_epsilon=1.0, evaluation_records=500)
    )  # fmt: skip
    assert federation.bytes == 5124
    run, contexts = federation.run_config(tmp_path / "run", resume=False), []
    run |= {"clients-per-round": 0, "batch": 32, "once": False, "reports": 1}
    for index in range(2):
        text = node_settings(federation, index).replace("# evaluation-eps", "evaluation-eps")
        settings = tomllib.loads(text)
        assert settings["max-epsilon-per-record"] == 4.0  # the evaluation has its part
        own = {key.replace("-", "_"): value for key, value in settings.items()} | {"require_ledger": False}
        contexts.append(ready_context(run, tmp_path / str(index), 50 + index, **own))
        contexts[-1].node_config.pop("max-epsilon")
    server_app(Nodes(client_app, contexts), ready_context(run, tmp_path, 1))
    written = lines(tmp_path / "run/metrics.jsonl")
    assert [line["clients"] for line in written] == [2] * 4
    assert written[-1]["epsilon_total"] == 3.0
    assert written[-1]["accuracy"] > 0.5
    assert len(Ledger(tmp_path / "0/ledger").entries) == 5
