"""The printed summary of a run: what its epsilon covers, and whom it protects."""

from pathlib import Path

import pytest

from sqsgd.cli.train import describe

SUMMARY = {
    "accuracy": 0.91234, "held_out": "1,000 test images of mnist5k", "notion": "local", "epsilon": 8.0,
    "epsilon_all_rounds": 80.0, "epsilon_total": 80.0, "participation": "all", "refused": 0,
    "noise": "seeded: for tests alone", "bytes_up": 64, "bytes_up_ratio": 7490.6, "seconds": 12.3,
    "share_gradient": 0.7, "share_encode": 0.2, "share_aggregate": 0.1,
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
        "time           12 s: gradient 70%, encode 20%, aggregate 10%",
        "written to     runs/a",
    ]


def test_metrics_of_ones_own_stand_where_accuracy_stands_and_say_what_is_better():
    told = described(
        accuracy=None, metric="RMSE", better="lower", metrics={"RMSE": 0.43218, "R2": "nan"}, test_loss=0.1868
    )
    assert told.splitlines()[:3] == [
        "RMSE           0.4322 (lower is better) on 1,000 test images of mnist5k",
        "R2             nan",
        "loss           0.1868",
    ]
    told = described(accuracy=None, metric="loss", better="lower", metrics={}, test_loss=0.25)
    assert told.startswith("loss           0.25 (lower is better) on 1,000 test images")
    assert told.count("loss") == 1


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


def test_the_order_is_told_where_users_report_once():
    assert "order" not in lines()
    told = lines(order_note="seeded: for tests alone", central_note="local 8 against everyone")
    assert told["order"] == "seeded: for tests alone"
    assert told["central"] == "local 8 against everyone"


def test_refusals_are_printed_only_if_there_were_any():
    assert "refused" not in lines()
    assert lines(refused=2000)["refused"] == "2,000 reports, by their clients' own ledgers"
