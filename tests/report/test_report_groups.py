"""Groups, their labels and their numbers."""

import math

import pytest

from sqsgd.training.summary import mean_interval

BASELINE = {"scheme": "fedsgd", "notion": "none"}


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([{"seed": 0}, {"seed": 1}], {"sqsgd"}),
        ([{"seed": 1, "ledgers": "a"}, {"seed": 2, "ledgers": "b"}], {"sqsgd"}),
        ([{"epsilon": 200.0}, {"epsilon": 400.5}], {"ε 200", "ε 400.5"}),
        ([{"bytes": 128, "lr": 0.5}, {"bytes": 256}], {"128 bytes, lr 0.5", "256 bytes, lr by rule"}),
        ([{"options": {"adaptive": True}}, {}], {"adaptive on", "adaptive default"}),
        ([{"dataset": "mnist", "seed": 5}, {"seed": 9}], {"mnist", "mnist5k"}),
        ([{"options": {"a": "x\x00\n\ud7ff"}}, {"options": {"a": "y"}}], {"a x\ufffd\ufffd\ufffd", "a y"}),
        # Names that runs were given are their labels, with a number where two groups have one.
        ([{"name": "Us"}, {"name": "Us", "bytes": 64}], {"Us", "Us (2)"}),
        # Baselines are not named after budgets that they ignore.
        (
            [{"epsilon": 200.0}, {"bytes": 128}, BASELINE, {**BASELINE, "epsilon": 200.0}],
            {"sqsgd, ε 200, 256 bytes", "sqsgd, ε 400, 128 bytes", "fedsgd", "fedsgd (2)"},
        ),
    ],
)
def test_labels_name_what_differs_and_nothing_else(grouped, settings, labels):
    assert {group.label for group in grouped(*settings)} == labels


@pytest.mark.parametrize(("metric", "best", "worse"), [(None, 0.9, 0.5), ("RMSE", 0.25, 0.5)])
def test_the_best_group_comes_first_and_one_that_measured_nothing_last(grouped, metric, best, worse):
    """The highest accuracy, or the lowest error."""
    runs = ({"bytes": 9, "done": 3}, {"bytes": 64, "best": worse}, {"bytes": 256, "best": best})
    groups = grouped(*({"metric": metric, **run} for run in runs))
    assert [group.config.bytes for group in groups] == [256, 64, 9]
    assert math.isnan(groups[2].accuracy[0])


def test_means_are_over_finished_runs_if_there_are_any(grouped):
    (group,) = grouped({"seed": 0}, {"seed": 1, "done": 20}, {"seed": 2, "done": 5, "error": "no"})
    assert [run.config.seed for run in group.counted] == [0]
    assert group.states == "1 finished, 1 unfinished, 1 failed"
    assert math.isnan(group.accuracy[1])


@pytest.mark.parametrize("secure", [False, True])
def test_a_seed_counts_once_unless_the_noise_was_secure(grouped, secure):
    (group,) = grouped(*({"seed": seed, "secure": secure} for seed in (0, 1, 2, 2)))
    if secure:
        assert (len(group.counted), group.repeated) == (4, ())
        return
    assert [run.config.seed for run in group.counted] == [0, 1, 2]
    assert [run.folder for run in group.repeated] == [group.runs[3].folder]
    assert group.states == "4 finished, 1 with a repeated seed"
    assert group.accuracy == mean_interval([float(run.accuracies[-1]) for run in group.runs[:3]])
