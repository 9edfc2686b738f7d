"""What a server can have written on a node's disk for nothing, and that it is little."""

from asking import ask, lines, request

from sqsgd import Ledger
from sqsgd.node import notes


def test_refusals_end_at_a_size_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "MAX_BYTES", 3000)
    for number in range(60):
        assert isinstance(ask(tmp_path, request(round=number), schemes="privunit-index"), str)
    assert 3000 <= (tmp_path / "refusals.jsonl").stat().st_size < 4000
    noted = lines(tmp_path / "refusals.jsonl")
    assert ["full" in line for line in noted] == [False] * (len(noted) - 1) + [True]


def test_repeats_end_at_a_size_and_paid_answers_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "MAX_BYTES", 1500)
    for _ in range(40):
        assert isinstance(ask(tmp_path, request()), bytes)
    full = (tmp_path / "answers.jsonl").stat().st_size
    assert 1500 <= full < 2200
    for number in range(1, 4):
        assert isinstance(ask(tmp_path, request(round=number)), bytes)
    noted = lines(tmp_path / "answers.jsonl")
    assert [line["round"] for line in noted if not line.get("again")] == [0, 1, 2, 3]
    assert sum(line["epsilon"] for line in noted) == Ledger(tmp_path / "ledger").spent
