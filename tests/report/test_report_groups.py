"""Groups, their labels and their numbers."""

import math

import pytest

from sqsgd.report.charts import all_charts
from sqsgd.training.summary import mean_interval

BASELINE = {"scheme": "fedsgd", "notion": "none"}


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([{"seed": 0}, {"seed": 1}], {"sqsgd"}),
        ([{"seed": 1, "ledgers": "a"}, {"seed": 2, "ledgers": "b"}], {"sqsgd"}),
        ([{"scheme": "sqsgd"}, {"scheme": "sqsgd-paper"}], {"sqsgd", "sqsgd-paper"}),
        ([{"epsilon": 200.0}, {"epsilon": 400.5}], {"ε 200", "ε 400.5"}),
        ([{"bytes": 128, "lr": 0.5}, {"bytes": 256}], {"128 bytes, lr 0.5", "256 bytes, lr by rule"}),
        ([{"lr": 0.5}, {"lr": 0.0}], {"lr 0.5", "lr by rule"}),
        ([{"options": {"levels": 8}}, {"options": {"levels": 32}}], {"levels 8", "levels 32"}),
        ([{"options": {"adaptive": True}}, {}], {"adaptive on", "adaptive default"}),
        ([{"dataset": "mnist", "seed": 5}, {"seed": 9}], {"mnist", "mnist5k"}),
        (
            [{"clip_norm": 2.0}, {"participation": "5"}],
            {"clip_norm 0, participation 5", "clip_norm 2, participation all"},
        ),
        ([{"secure": True}, {}], {"secure on", "secure off"}),
        ([{"options": {"a": "x\x00\n\ud7ff"}}, {"options": {"a": "y"}}], {"a x\ufffd\ufffd\ufffd", "a y"}),
        # Names that runs were given are their labels, with a number where two groups have one.
        (
            [{"name": "Us", "seed": 1}, {"name": "Us"}, {"bytes": 64}, {"bytes": 9}],
            {"Us", "64 bytes", "9 bytes"},
        ),
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


def test_the_best_group_comes_first_and_one_without_accuracy_last(grouped):
    groups = grouped({"scheme": "fedsgd", "done": 3}, {"bytes": 64, "best": 0.5}, {"bytes": 256, "best": 0.9})
    assert [group.config.bytes for group in groups[:2]] == [256, 64]
    assert groups[2].config.scheme == "fedsgd"
    assert math.isnan(groups[2].accuracy[0])
    assert math.isnan(groups[2].best_accuracy)


def test_the_lowest_error_comes_first(grouped):
    runs = ({"metric": "RMSE", "best": 0.5}, {"metric": "RMSE", "best": 0.25, "bytes": 64})
    first, second = grouped(*runs)
    assert first.config.bytes == 64
    assert first.accuracy[0] < second.accuracy[0]
    assert first.best_accuracy == min(first.runs[0].accuracies)


def test_the_interval_is_students_from_three_runs_on(grouped):
    (group,) = grouped({"seed": 0}, {"seed": 1}, {"seed": 2})
    for run, last in zip(group.runs, (0.90, 0.92, 0.94), strict=True):
        run.columns["accuracy"][-1] = last
    mean, half = group.accuracy
    assert mean == pytest.approx(0.92)
    assert half == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-6)
    assert group.best_accuracy == 0.94


def test_means_are_over_finished_runs_if_there_are_any(grouped):
    (group,) = grouped({"seed": 0}, {"seed": 1, "done": 20}, {"seed": 2, "done": 5, "error": "no"})
    assert [run.config.seed for run in group.counted] == [0]
    assert group.states == "1 finished, 1 unfinished, 1 failed"
    assert math.isnan(group.accuracy[1])


def test_unfinished_runs_are_compared_up_to_the_round_that_all_have(grouped):
    (group,) = grouped({"seed": 0, "done": 25}, {"seed": 1, "done": 33}, {"seed": 2, "done": 0})
    assert (len(group.counted), group.rounds) == (2, 25)
    assert [point["x"] for point in all_charts([group])[0].points] == [10.0, 20.0]


@pytest.mark.parametrize(
    ("scheme", "notion"), [("sqsgd", "local"), ("fedsgd", "none"), ("unheard-of", "unknown")]
)
def test_an_unfinished_run_has_the_notion_of_its_scheme(grouped, scheme, notion):
    assert grouped({"scheme": scheme, "done": 5})[0].notion == notion


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


@pytest.mark.parametrize(("done", "counted"), [((5, 40, 7), 40), ((5, 7), 7)])
def test_of_a_repeated_seed_the_finished_or_else_the_longest_run_counts(grouped, done, counted):
    (group,) = grouped(*({"done": rounds} for rounds in done))
    assert [run.rounds for run in group.counted] == [counted]
    assert group.state == ("finished" if counted == 40 else "unfinished")
