"""The tables of the page: what they show and how they sort."""

import dataclasses
import math

import pytest
from tags import Tags

from sqsgd.report import tables
from sqsgd.report.charts import line_charts, split_chart
from sqsgd.report.tables import MOST_ROWS, Cell
from sqsgd.report.text import MISSING


def test_the_table_can_be_sorted_on_every_heading(grouped):
    groups = grouped({}, {"scheme": "fedsgd", "notion": "none", "done": 3})
    table = Tags(tables.results_table(groups))
    assert (
        len(table.named("button"))
        == len([each for each in table.named("th") if each["scope"] == "col"])
        == 12
    )
    values = [each["data-value"] for each in table.named("td") if "data-value" in each]
    assert "Infinity" in values
    assert "" in values
    assert "nan" not in " ".join(table.words)


def words(html):
    return [word for word in Tags(html).words if word.strip()]


def test_a_row_says_how_its_runs_ended(grouped):
    runs = ({"seed": 0}, {"seed": 1, "done": 17}, {"bytes": 64}, {"bytes": 32, "done": 9})
    shown = tables.results_table(grouped(*runs))
    assert "1 finished, 1 unfinished" in words(shown)
    assert '<span class="warning">unfinished at round 9 of 40</span>' in shown
    assert shown.count('class="warning"') == 2  # not for finished runs


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_three_runs_or_more_have_an_interval_in_the_table(grouped, seeds):
    shown = tables.results_table(grouped(*({"seed": seed} for seed in range(seeds))))
    assert ("±" in shown) is (seeds == 3)


def test_the_rate_of_a_run_is_shown_given_or_by_the_rule(grouped):
    """An unfinished run by the rule has not told it yet."""
    runs = ({"lr": 0.5, "done": 9}, {"bytes": 64}, {"bytes": 32, "done": 9})
    groups = grouped(*runs)
    by_label = {group.label: group.lr for group in groups}
    assert by_label["256 bytes, lr 0.5"] == 0.5
    assert by_label["64 bytes"] == 0.1
    assert math.isnan(by_label["32 bytes"])
    assert {"0.5", "0.1", MISSING} <= set(words(tables.results_table(groups)))


@pytest.mark.parametrize(
    ("value", "sorted_by"),
    [
        (None, ""),
        (math.nan, ' data-value=""'),
        (math.inf, ' data-value="Infinity"'),
        (3, ' data-value="3.0"'),
    ],
)
def test_what_javascript_can_read_as_a_number(value, sorted_by):
    assert tables._sort_value(Cell(html="x", value=value)) == sorted_by


@pytest.mark.parametrize(("ratio", "shown"), [(1756.4, "1/1,756"), (10.0, "1/10"), (1.55, "1/1.6")])
def test_fractions_of_float32(ratio, shown):
    assert tables._fraction(ratio) == shown


def test_the_data_of_a_long_curve_is_thinned_but_keeps_its_last_point(grouped):
    (chart, *_) = line_charts(grouped({"rounds": 1000, "evaluate_every": 1}))
    found = tables.chart_table(chart)
    assert 20 < found.count("<tr>") - 1 <= MOST_ROWS
    assert words(found)[-2:] == ["1,000", chart.shown(chart.curves[0].mean[-1])]
    assert "± 95 %" not in found


def test_the_data_of_many_curves_are_thinned_more(grouped):
    (chart, *_) = line_charts(grouped({"rounds": 1000, "evaluate_every": 1}))
    many = dataclasses.replace(chart, curves=chart.curves * 40)
    assert tables.chart_table(many).count("<tr>") - 1 == 40 * 5


def test_the_data_of_several_runs_have_their_interval(grouped):
    chart = line_charts(grouped({"seed": 0}, {"seed": 1}, {"seed": 2}))[0]
    curve = chart.curves[0]
    found = words(tables.chart_table(chart))
    assert found[1:5] == ["Group", "rounds", "accuracy", "± 95 %"]
    assert found[-2:] == [chart.shown(curve.mean[-1]), chart.shown(curve.half[-1])]


def test_the_bars_as_a_table(grouped):
    found = words(tables.split_table(split_chart(grouped({}))))
    assert found[1:] == ["Group", "gradient", "encode", "aggregate", "rest", "sqsgd", "60", "20", "5", "15"]


def test_every_setting_but_the_seed_is_listed_once_per_group(grouped):
    found = words(tables.configuration(grouped({"seed": 7, "lr": 0.125}, {"seed": 8, "lr": 0.125})))
    assert found[0] == "sqsgd (2 runs)"
    assert found[found.index("lr") + 1] == "0.125"
    assert "seed" not in found
    assert [word for word in found if word.startswith("seed ")] == ["seed 7", "seed 8"]


def test_an_error_is_named_sorts_upward_and_is_no_percentage(grouped):
    groups = grouped({"metric": "RMSE", "best": 0.25})
    shown = tables.results_table(groups)
    assert {"RMSE", "Best RMSE"} <= {header.name for header in tables._headers(groups)}
    assert [each["data-first"] for each in Tags(shown).named("th") if each.get("scope") == "col"][
        2
    ] == "ascending"
    assert any(word.startswith("RMSE 0.") for word in words(shown))


def test_groups_with_different_metrics_share_a_column_of_results(grouped):
    mixed = tables._headers(grouped({"metric": "RMSE", "loss": "squared-error"}, {}))
    assert [header.name for header in mixed][2:4] == ["Result", "Best result"]
