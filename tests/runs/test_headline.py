"""The metric that a run is judged by, in records and summaries."""

import math

import pytest

from sqsgd.runs.headline import ACCURACY, Headline, read_headline

ERROR = Headline(name="RMSE", better="lower")


def test_accuracy_is_the_headline_unless_another_metric_is_named():
    assert read_headline({"accuracy": 0.5, "test_loss": 1.0}) == (ACCURACY, 0.5)
    line = {"metric": "RMSE", "better": "lower", "metrics": {"RMSE": 0.25, "R2": 0.5}, "test_loss": 0.0625}
    assert read_headline(line) == (ERROR, 0.25)
    assert read_headline({"metric": "loss", "better": "lower", "metrics": {}, "test_loss": 2.0}) == (
        Headline(name="loss", better="lower"),
        2.0,
    )
    assert read_headline({"round": 3}) is None


def test_numbers_that_json_lacks_are_words():
    _, value = read_headline({"metric": "R2", "better": "higher", "metrics": {"R2": "nan"}})
    assert math.isnan(value)


def test_lower_errors_are_better_and_higher_accuracies():
    assert (ERROR.best([0.5, 0.25, 1.0]), ACCURACY.best([0.5, 0.25, 1.0])) == (0.25, 1.0)
    assert sorted([0.5, 0.25], key=ERROR.rank) == [0.25, 0.5]
    assert sorted([0.5, 0.25], key=ACCURACY.rank) == [0.5, 0.25]
    assert ERROR.best([]) is None


@pytest.mark.parametrize(("headline", "shown"), [(ACCURACY, "12.35%"), (ERROR, "0.1235")])
def test_only_accuracy_is_a_percentage(headline, shown):
    assert headline.shown(0.12345) == shown
