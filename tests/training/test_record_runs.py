"""A run per record: the guarantee is of all rounds, sums are divided by a public number, ledgers pay."""

import numpy as np
import pytest

import sqsgd
from sqsgd.privacy.ledger import Ledger
from sqsgd.training.rates import record_rate

SMALL = {
    "scheme": "sqsgd-record",
    "model": "linear",
    "clients": 4,
    "rounds": 6,
    "epsilon": 4.0,
    "report": False,
}


def trained(tmp_path, **more):
    return sqsgd.train(out=tmp_path / "run", **{**SMALL, **more})


@pytest.mark.parametrize("batching", ["poisson", "disjoint"])
def test_the_whole_run_has_the_budget(tmp_path, batching):
    run = trained(tmp_path, batching=batching, sampling=0.5)
    totals = [record["epsilon_total"] for record in run.records]
    assert totals == sorted(totals)
    assert totals[-1] == run.summary["epsilon_all_rounds"] == 4.0
    about = [run.summary[name] for name in ("notion", "delta", "protects")]
    assert about == ["record", 1e-5, "record"]
    assert totals[0] == run.records[0]["epsilon"] < 4.0
    assert run.metrics["accuracy"] > 0.3


def test_a_run_can_be_repeated_and_resumed(tmp_path):
    first = trained(tmp_path / "first")
    second = trained(tmp_path / "second")
    assert first.metrics == second.metrics
    kept = [{name: record[name] for name in ("loss", "epsilon_total")} for record in first.records]
    assert kept == [{name: record[name] for name in ("loss", "epsilon_total")} for record in second.records]


def test_ledgers_pay_for_the_run_and_for_nothing_more(tmp_path):
    run = trained(tmp_path, ledgers=str(tmp_path / "ledgers"))
    assert run.summary["refused"] == 0
    (ledger, *others) = [Ledger(path) for path in (tmp_path / "ledgers").glob("*/client-?")]
    assert len(others) == 3
    assert ledger.unit == "epsilon at delta = 1e-05"
    assert 3.9 < float(ledger.spent) <= 4.0
    assert len(ledger.entries) == 6
    with pytest.raises(ValueError, match="all 4 clients refused, their budgets are spent"):
        trained(tmp_path / "again", ledgers=str(tmp_path / "ledgers"), seed=1)


def test_the_noise_of_all_rounds_moves_a_weight_as_far_as_planned():
    scheme = sqsgd.make_scheme("sqsgd-record", dim=500, epsilon=1.0, reports=60, records=30)
    rate, rng = record_rate(scheme, 10, 0.2, "softmax"), sqsgd.seeded_rng(1)
    moved = np.zeros(500)
    for round in range(60):
        task = sqsgd.Task(round=round, client=0, seed=1, dim=500, bound=0.2)
        reports = [(task, scheme.encode(scheme.record_sum(task), task, rng)) for _ in range(10)]
        moved += rate * (1 - round / 60) * scheme.aggregate(reports)
    assert moved.std() == pytest.approx(1.4, rel=0.15)


def test_what_cannot_be_is_refused_before_anything_is_paid(tmp_path):
    for wrong, message in (
        ({"participation": "once"}, "all clients"),
        ({"batching": "shuffled"}, "batching = 'shuffled' must be one of"),
        ({"delta": 0.0}, "delta = 0.0 must be a number from"),
        ({"delta": 0.5}, "delta = 0.5 must be a number from"),
        ({"epsilon": 1e-9}, "epsilon"),
        ({"options": {"levels": 1}}, "levels = 1"),
        ({"engine": "flower"}, "engine = 'flower'"),
        ({"model": batch_normed}, "use GroupNorm"),
    ):
        with pytest.raises(ValueError, match=message):
            trained(tmp_path, ledgers=str(tmp_path / "ledgers"), **wrong)
    assert not (tmp_path / "ledgers").exists()
    assert not (tmp_path / "run").exists()


def batch_normed():
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 10)
    )


def test_a_resumed_run_keeps_its_number_of_rounds(tmp_path):
    """More rounds would have less noise each, which earlier rounds have not had."""
    run = trained(tmp_path, decay="none", rounds=2, clip_norm=0.25)
    assert [record["bound"] for record in run.records] == [0.25, 0.25]
    config = run.folder / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 4"))
    with pytest.raises(ValueError, match="rounds = 4, but this run was begun with 2"):
        sqsgd.train(out=run.folder, resume=True, report=False)
