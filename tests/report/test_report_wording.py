"""Names of groups, titles and axes that the author of a report sets."""

import pytest

from sqsgd.report.charts import all_charts
from sqsgd.report.wording import Wording


def test_groups_are_renamed_everywhere(grouped):
    groups = grouped({"best": 0.9}, {"bytes": 64, "best": 0.5})
    named = Wording(labels=("256 bytes=K = 16", "64 bytes = Short")).renamed(groups)
    assert [group.label for group in named] == ["K = 16", "Short"]
    again = Wording(labels=("K = 16=Ours",)).renamed(named)  # an equals sign in the old name
    assert [group.label for group in again] == ["Ours", "Short"]
    assert {curve.label for curve in all_charts(again)[0].curves} == {"Ours", "Short"}


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (("nothing=Ours",), "the groups are '256 bytes', '64 bytes'"),
        (("256 bytes=",), "must look like OLD=NEW"),
        (("256 bytes=64 bytes",), "two groups would be called '64 bytes'"),
    ],
)
def test_names_must_fit(grouped, labels, told):
    groups = grouped({"best": 0.9}, {"bytes": 64, "best": 0.5})
    with pytest.raises(ValueError, match=told):
        Wording(labels=labels).renamed(groups)


def test_titles_and_axes(grouped):
    charts = all_charts(grouped({}))
    words = ("loss.title=How it learns", "loss.x=communication rounds", "accuracy-by-round.y=A = B")
    changed = {chart.name: chart for chart in Wording(figures=words).titled(charts)}
    assert list(changed) == [chart.name for chart in charts]
    loss = changed["loss"]
    assert (loss.title, loss.x_title, loss.shows_title) == ("How it learns", "communication rounds", True)
    accuracy = changed["accuracy-by-round"]
    assert (accuracy.title, accuracy.y_title, accuracy.shows_title) == ("Accuracy by round", "A = B", False)


@pytest.mark.parametrize("text", ["loss", "loss.title", "loss.z=a", "lost.title=a", "time.y=a", "=a"])
def test_what_cannot_be_set_is_refused(grouped, text):
    with pytest.raises(ValueError, match=r"must look like NAME\.title=TEXT"):
        Wording(figures=(text,)).titled(all_charts(grouped({})))


def test_the_command_says_the_same_words():
    made = Wording(labels=("a=b", "c=d"), figures=("loss.x=e",))
    assert made.arguments == ["--label", "a=b", "--label", "c=d", "--figure", "loss.x=e"]
