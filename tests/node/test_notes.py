"""What a server can have written on a node's disk for nothing, and that it is little."""

import pytest
from federation import answer, lines, make_app, message, node_context, payload_of, request

from sqsgd import Ledger
from sqsgd.flower import guard
from sqsgd.node import notes


@pytest.mark.parametrize(
    "extra",
    [
        {"name": "x" * 20_000_000},
        {"y" * 20_000_000: 1},
        {"scheme": "z" * 20_000_000},
        {"round": [7] * 1_000_000},
        {"name": b"b" * 1_000_000},
    ],
    ids=lambda extra: next(iter(extra))[:10],
)
def test_a_refused_request_writes_little(tmp_path, extra, caplog):
    assert make_app()(message(request(), **extra), node_context(5, tmp_path)).has_error()
    assert (tmp_path / "refusals.jsonl").stat().st_size < 2000
    assert lines(tmp_path / "refusals.jsonl")[-1]["reason"]
    assert sum(len(record.getMessage()) for record in caplog.records) < 2000


def test_refusals_end_at_a_size_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "MOST", 3000)
    context = node_context(5, tmp_path, schemes="privunit-index")
    for number in range(60):
        assert answer(request(round=number), context).has_error()
        guard._note(context.node_config, f"this node does not run the app {number}")
    assert 3000 <= (tmp_path / "refusals.jsonl").stat().st_size < 4000
    noted = lines(tmp_path / "refusals.jsonl")
    assert ["full" in line for line in noted] == [False] * (len(noted) - 1) + [True]


def test_repeats_end_at_a_size_and_paid_answers_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "MOST", 1500)
    context = node_context(5, tmp_path)
    for _ in range(40):
        payload_of(answer(request(), context))
    full = (tmp_path / "answers.jsonl").stat().st_size
    assert 1500 <= full < 2200
    for number in range(1, 4):
        payload_of(answer(request(round=number), context))
    noted = lines(tmp_path / "answers.jsonl")
    assert [line["round"] for line in noted if not line.get("again")] == [0, 1, 2, 3]
    assert sum(line["epsilon"] for line in noted) == Ledger(tmp_path / "ledger").spent
