"""The printed summary of a run: what its epsilon covers, and whom it protects."""

import json
from pathlib import Path

import pytest
from typed import typed

from sqsgd.cli.train import describe

SUMMARY = {
    "accuracy": 0.91234, "held_out": "1,000 test images of mnist5k", "notion": "local", "epsilon": 8.0,
    "epsilon_all_rounds": 80.0, "epsilon_total": 80.0, "participation": "all", "refused": 0,
    "noise": "seeded: for tests alone", "bytes_up": 64, "bytes_up_ratio": 7490.6, "seconds": 12.3,
    "share_gradient": 0.7, "share_encode": 0.2, "share_aggregate": 0.1,
    "lr": 0.12345, "decay": "linear",
}  # fmt: skip


ALL_ROUNDS = "8 per round; 80 for a client that takes part in all rounds"


def lines(**changes):
    return dict(line.split(maxsplit=1) for line in described(**changes).splitlines())


def described(**changes):
    return describe({**SUMMARY, **changes}, Path("runs/a"))


def test_the_whole_summary():
    assert described().splitlines() == [
        "accuracy       91.23% on 1,000 test images of mnist5k",
        f"epsilon        {ALL_ROUNDS}",
        "noise          seeded: for tests alone",
        "payload        64 bytes per client and round, 1/7491 of float32",
        "learning rate  0.123, falling linearly to 0",
        "time           12 s: gradient 70%, encode 20%, aggregate 10%",
        "written to     runs/a",
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epsilon_total": 24.0}, f"{ALL_ROUNDS}; 24 for the client that took part most often"),
        ({"participation": "once"}, "8 per report, which is the total: no user sends two"),
        ({"notion": "none"}, ALL_ROUNDS.replace("80", "infinite").replace("8 ", "infinite (not private) ")),
        # once, but central: a single report is not private
        ({"participation": "once", "notion": "central"}, ALL_ROUNDS),
    ],
)
def test_what_epsilon_covers(changes, told):
    assert lines(**changes)["epsilon"] == told


def test_a_constant_rate():
    assert "learning rate  0.123\n" in described(decay="none")


def test_the_order_is_told_where_users_report_once():
    assert "order" not in lines()
    told = lines(order_note="seeded: for tests alone", central_note="local 8 against everyone")
    assert told["order"] == "seeded: for tests alone"
    assert told["central"] == "local 8 against everyone"


def test_refusals_are_printed_only_if_there_were_any():
    assert "refused" not in lines()
    assert lines(refused=2000)["refused"] == "2,000 reports, by their clients' own ledgers"


@pytest.mark.parametrize(("epsilon", "told"), [(0.5, True), (20.0, False)])
def test_what_cannot_be_learned_is_told_on_standard_error(epsilon, told, tmp_path):
    line = (
        f"sqsgd train --dataset tiny:data --model tiny:model --scheme vqsgd --epsilon {epsilon} --clients 4"
    )
    done = typed(f"{line} --bytes 16 --rounds 3 --json --out {tmp_path / 'run'}")
    assert done.code == 0
    assert ("vqsgd at epsilon 0.5 in 3 rounds of 4 clients: nothing will be learned" in done.error) is told
    assert json.loads(done.out)["lr"] > 0
