"""All rounds of a training: what is written after each, and when it ends."""

import json

import pytest
from federation import DIM, IDS, lines, model, nodes_of, strategy
from flwr.app import MetricRecord

from sqsgd import Ledger
from sqsgd.flower import wire
from sqsgd.flower.round_tally import MOST_EMPTY_ROUNDS, NoAnswers
from sqsgd.node import reasons
from sqsgd.report.page import write_report
from sqsgd.training.reading import read_run


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
    assert first["bytes_up"] == made.scheme.bits // 8 < first["bytes_up_serialised"]
    assert 4 * DIM < first["bytes_down"] < first["bytes_down_serialised"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["finished"], summary["accuracy"]) == (3, True, 0.5)
    assert (tmp_path / "run" / "model.safetensors").exists()
    noted = lines(tmp_path / "5" / "answers.jsonl")
    assert [entry["payload_bytes"] for entry in noted] == [first["bytes_up"]] * 3
    assert noted[0]["serialised_bytes"] == pytest.approx(first["bytes_up_serialised"], abs=40)


def test_the_total_counts_reports_that_came_too_late(tmp_path):
    """They were paid for all the same; no other node answers more often, so the largest total is theirs."""
    nodes = nodes_of(tmp_path)
    nodes.spoil = lambda node, _, reply: None
    made = strategy(out=tmp_path / "run")
    with pytest.raises(NoAnswers, match=r"no answer within 0\.2 s"):
        made.start(nodes, model(), num_rounds=2, timeout=0.2)
    assert [line["clients"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [0, 0]
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["epsilon_total"] == 400.0
    assert {Ledger(tmp_path / str(node) / "ledger").spent for node in IDS} == {400}


def test_spent_budgets_leave_the_model_and_end_the_training(tmp_path):
    made = strategy(out=tmp_path / "run")
    with pytest.raises(NoAnswers, match="budgets may be spent"):
        made.start(nodes_of(tmp_path, max_epsilon=450.0), model(), num_rounds=99)
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["clients"] for line in written] == [3, 3] + [0] * MOST_EMPTY_ROUNDS
    assert {entry["reason"] for entry in written[-1]["rejected"]} == {reasons.SPENT}
    assert written[-1]["epsilon_total"] == 400.0


def test_what_was_said_most_often_is_told_when_it_ends(tmp_path):
    with pytest.raises(NoAnswers, match=f"0 of 3 that were asked .3: {reasons.SPENT}."):
        strategy().start(nodes_of(tmp_path, max_epsilon=250.0), model(), num_rounds=99)


def test_a_training_of_no_rounds_is_the_model_as_it_was(tmp_path):
    measured = []

    def evaluate(number, arrays):
        measured.append(number)

    result = strategy(out=tmp_path / "run").start(
        nodes_of(tmp_path), model(0.5), num_rounds=0, evaluate_fn=evaluate
    )
    assert wire.flatten_record(result.arrays)[1].tolist() == [0.5] * DIM
    assert measured == [0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["accuracy"], summary["epsilon_total"]) == (0, None, 0.0)


@pytest.mark.parametrize(("rounds", "timeout", "word"), [(-1, 1.0, "num_rounds"), (1, -1.0, "timeout")])
def test_rounds_and_times_are_checked_before_anyone_is_asked(tmp_path, rounds, timeout, word):
    nodes = nodes_of(tmp_path)
    with pytest.raises(ValueError, match=word):
        strategy().start(nodes, model(), rounds, timeout)
    assert nodes.sent == []


@pytest.mark.parametrize(
    "changes", [{}, {"scheme": "sqsgd-stateless"}, {"once": True, "clients_per_round": 3}]
)
def test_a_federations_folder_is_reported_like_any_other(tmp_path, changes):
    if "once" in changes:
        changes = {**changes, "scheme": "privunit-index", "epsilon": 8.0}
    made = strategy(out=tmp_path / "run", **changes)
    made.start(
        nodes_of(tmp_path / "nodes"), model(), num_rounds=1 if "once" in changes else 3,
        evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5}),
    )  # fmt: skip
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "1 run in 1 group, 1 finished" in page
    assert "data of the nodes" in page
    if "scheme" not in changes:
        assert "The noise was secure" in page
        assert "3 × 200 = 600" in page
    if "once" in changes:
        assert "Each client sends at most one report" in page


def test_an_unfinished_federation_says_how_far_it_came(tmp_path):
    with pytest.raises(NoAnswers):
        strategy(out=tmp_path / "run").start(nodes_of(tmp_path, max_epsilon=250.0), model(), num_rounds=99)
    assert read_run(tmp_path / "run").status == "unfinished at round 11 of 99"
