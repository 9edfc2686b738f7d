"""The page of runs: groups, statement, figures and tables; strings of a run cannot inject anything."""

import csv
import json
import math
import re
from unittest import mock

import folders
import numpy as np
import pytest
import vl_convert
from folders import write_run
from scipy import stats
from tags import Tags

from sqsgd.report import page
from sqsgd.report.charts import all_charts
from sqsgd.report.groups import group_runs
from sqsgd.report.page import write_report, write_tables
from sqsgd.report.statement import statements
from sqsgd.report.tables import clean
from sqsgd.training.reading import read_runs
from sqsgd.training.summary import mean_interval

NASTY = "</script><b onmouseover=alert(1)>&'\"<!--{{ 7 * 7 }}"
PLACES = {"src", "href", "action", "srcset", "data", "poster", "formaction"}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The page of runs, without Vega's own script."""

    def make(title=None):
        monkeypatch.setattr(page, "_vega", lambda: "/* vega */")
        return write_report([tmp_path / "runs"], tmp_path / "out" / "report.html", title).read_text()

    return make


def test_the_page_shows_everything(tmp_path, written):
    with pytest.raises(ValueError, match="does not exist"):
        write_report([tmp_path / "none"], tmp_path / "report.html")
    for seed in range(3):
        write_run(tmp_path / "runs" / f"a{seed}", seed=seed)
    write_run(tmp_path / "runs" / "b", scheme="fedsgd", notion="none", best=0.8)
    write_run(tmp_path / "runs" / "c", bytes=64, done=17)
    write_run(tmp_path / "runs" / "d", bytes=32, done=3, error="out of memory")
    content = written()
    found = Tags(content)
    words = " ".join(" ".join(found.words).split())
    for part in ("6 runs in 4 groups, 4 finished", "failed at round 3 of 40: out of memory"):
        assert part in words
    assert re.search(r"sqsgd train --config \S+/a0/config\.toml --out again/\d", words)
    assert len(found.named("figure")) == len(found.named("figcaption")) == 6
    names = [each["id"] for _, each in found.tags if "id" in each]
    assert len(names) == len(set(names))
    for _, each in found.tags:
        for pointer in ("aria-labelledby", "href"):
            if pointer in each and not each[pointer].startswith("data:"):
                assert each[pointer].removeprefix("#") in names


def test_nothing_is_loaded_from_anywhere(tmp_path, written):
    write_run(tmp_path / "runs" / "a")
    content = written()
    found = Tags(content)
    for tag, attributes in found.tags:
        assert tag not in ("iframe", "object", "embed", "img", "base"), tag
        for place in PLACES & set(attributes):
            assert attributes[place].startswith(("#", "data:")), (tag, attributes)
    for word in ("http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttpRequest", "eval("):
        assert word not in content, word
    policy = next(each["content"] for each in found.named("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy
    assert "connect-src" not in policy


def test_vega_is_kept_and_made_again_if_it_cannot_be_read(tmp_path, monkeypatch):
    made = mock.Mock(return_value="script " * 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", made)
    for _ in range(2):
        assert page._vega.__wrapped__() == made.return_value
    assert made.call_count == 1
    (kept,) = (tmp_path / "sqsgd/report").iterdir()
    kept.write_bytes(kept.read_bytes()[:-20])
    assert page._vega.__wrapped__() == made.return_value
    assert made.call_count == 2


def test_strings_from_a_run_stay_strings(tmp_path, written):
    folder = tmp_path / "runs" / "x<b onclick=alert(2)>\n\udcff"
    write_run(folder, options={"name": NASTY, NASTY: 1}, dataset=NASTY, model=NASTY, done=5, error=NASTY)
    write_run(tmp_path / "runs" / "b", scheme=NASTY, options={"name": "other"})
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "c" / "error.txt").write_text(NASTY)
    content = written(title=NASTY)
    found = Tags(content)
    assert content.count("</script") == 3
    assert "b" not in {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert found.named("h1") == [{}]
    assert NASTY in " ".join(found.words)
    data = content.split('id="report-data">')[1].split("</script")[0]
    assert not set(data) & set("<>&")
    assert any(NASTY in row["group"] for row in json.loads(data)["charts"]["#plot-loss"]["data"]["values"])


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("nasty", ["\x00", "\n", "\x1b", "\u202e", "\udcff"])
def test_invisible_characters_are_replaced(nasty):
    """Including the right-to-left mark, and a lone surrogate of a file name."""
    assert clean(f"a{nasty}b") == "a\ufffdb"
    kept = "ε 400\N{NO-BREAK SPACE}%\N{IDEOGRAPHIC SPACE}数 é ± –"
    assert clean(kept) == kept


def test_csv_has_a_row_per_run_per_arm_and_per_point(grouped, tmp_path):
    fedsgd = {"scheme": "fedsgd", "notion": "none", "name": "=Fed, SGD", "best": 0.5}
    groups = grouped(*({"seed": seed} for seed in range(3)), fedsgd, {"bytes": 64, "done": 17})
    rows = {}
    for path in write_tables(groups, tmp_path / "csv"):
        with path.open(newline="") as file:
            rows[path.stem] = list(csv.DictReader(file))
    assert (len(rows["runs"]), len(rows["arms"])) == (5, 3)
    first = next(row for row in rows["runs"] if row["seed"] == "1")
    run = next(run for run in groups[0].runs if run.config.seed == 1)
    assert float(first["value"]) == run.accuracies[-1]
    assert (first["bytes"], float(first["bytes_per_report"])) == ("256", 273.0)
    by_name = {row["arm"]: row for row in rows["arms"]}
    whole, baseline = by_name[groups[0].label], by_name["'=Fed, SGD"]  # not a formula
    assert (float(whole["mean"]), float(whole["half_width_95"])) == groups[0].accuracy
    assert (whole["runs"], whole["state"]) == ("3", "finished")
    assert (baseline["half_width_95"], baseline["epsilon"]) == ("", "inf")
    assert next(row["state"] for row in rows["runs"] if row["bytes"] == "64") == "unfinished"
    points = [
        row for row in rows["figures"] if row["figure"] == "accuracy-by-round" and row["arm"] == whole["arm"]
    ]
    assert float(points[-1]["half_width_95"]) == groups[0].accuracy[1]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([{"seed": 0}, {"seed": 1}], {"sqsgd"}),
        ([{"seed": 1, "ledgers": "a"}, {"seed": 2, "ledgers": "b"}], {"sqsgd"}),
        ([{"bytes": 128, "lr": 0.5}, {"bytes": 256}], {"128 bytes, lr 0.5", "256 bytes, lr by rule"}),
        ([{"options": {"adaptive": True}}, {}], {"adaptive on", "adaptive default"}),
        ([{"options": {"a": "x\x00\n\ud7ff"}}, {"options": {"a": "y"}}], {"a x\ufffd\ufffd\ufffd", "a y"}),
        # Names that runs were given are their labels, with a number where two groups have one.
        ([{"name": "Us"}, {"name": "Us", "bytes": 64}], {"Us", "Us (2)"}),
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


CENTRAL = {
    "central_epsilon": 0.13811,
    "central_note": "local 4 against everyone; central (0.139, 1e-6) against readers of the models",
    "central_assumptions": ["nobody knows the order", "no user reveals a slot"],
}
ONCE = {"participation": "once", "epsilon": 4.0, "clients": 60000}
SECURE_ONCE = {**ONCE, "secure": True, "central": CENTRAL}


@pytest.fixture
def stated(tmp_path):
    """The statement on a run with these settings, in one line."""

    def make(**settings):
        write_run(tmp_path / "run", **settings)
        ((made, _labels),) = statements(group_runs(read_runs([tmp_path])[0]))
        return " ".join([made.short + ".", *made.sentences]).replace("\N{NO-BREAK SPACE}", " ")

    return make


@pytest.mark.parametrize(
    ("settings", "said", "not_said"),
    [
        ({"epsilon": 400.0}, "40 × 400 = 16,000 in total|at most about 10^174 times|is a weak guarantee", ""),
        ({"epsilon": 1.0, "rounds": 5}, "2.718 times as likely|at most 73.1 % of the time", "weak"),
        ({"secure": True}, "The noise was secure", "protects nobody"),
        ({"scheme": "fedsgd", "notion": "none"}, "No privacy. These schemes have no privacy", "noise"),
        (
            {"scheme": "cpsgd", "notion": "central"},
            "provided that the aggregator is trusted|a δ that the run did not record",
            "locally",
        ),
        ({"notion": "astral"}, "Unknown guarantee. The meaning of its ε is unknown", "private with"),
        ({"done": 10}, "4,000 in total so far|has so far spent 10 × 400 = 4,000", ""),
        ({"done": 0, "error": "out of memory"}, "nothing was sent and nothing was spent", ""),
        (
            SECURE_ONCE,
            "; central ε 0.139.|private: local 4 against everyone; central (0.139",
            "secret order.",
        ),
        ({**ONCE, "central": CENTRAL}, "with secure noise and a secret order.", ""),
    ],
)
def test_what_is_stated(stated, settings, said, not_said):
    text = stated(**settings)
    for words in said.split("|"):
        assert words in text
    assert not not_said or not_said not in text


def test_a_client_that_did_not_always_take_part(stated, monkeypatch):
    line = folders._line
    halved = lambda *given: {**line(*given), "epsilon_total": 400.0 * (given[0] // 2 + 1)}  # noqa: E731
    monkeypatch.setattr(folders, "_line", halved)
    assert "sent 20 reports. It spent 20 × 400 = 8,000" in stated(participation="5")


@pytest.mark.parametrize(
    "changes",
    [
        {"central": None},
        {"participation": "all"},
        {"notion": "central", "scheme": "cpsgd"},
        {"done": 20},
        *({"central": {**CENTRAL, name: value}} for name, value in [
            ("central_epsilon", None), ("central_epsilon", 4.0), ("central_epsilon", -0.1),
            ("central_note", ""), ("central_assumptions", []), ("central_assumptions", None),
        ]),
    ],
    ids=str,
)  # fmt: skip
def test_no_central_number_without_all_that_it_rests_on(stated, changes):
    text = stated(**{**ONCE, "central": CENTRAL, **changes})
    assert "centrally" not in text
    assert "central ε" not in text


def test_a_group_states_its_weakest_guarantee(tmp_path):
    for seed, epsilon in enumerate((0.1, 0.3, 0.2)):
        central = {**CENTRAL, "central_epsilon": epsilon}
        write_run(tmp_path / "runs" / f"{seed}", **ONCE, seed=seed, central=central)
    ((made, _),) = statements(group_runs(read_runs([tmp_path])[0]))
    assert made.central.epsilon == 0.3
    write_report([tmp_path], tmp_path / "page.html")
    assert "Central ε and δ add up too." in (tmp_path / "page.html").read_text()
    write_run(tmp_path / "runs" / "3", **ONCE, seed=3)
    ((made, _),) = statements(group_runs(read_runs([tmp_path])[0]))
    assert made.central is None


FEDSGD = {"scheme": "fedsgd", "notion": "none"}


def test_curves_are_means_with_the_interval_of_student(grouped):
    groups = grouped(*({"seed": seed} for seed in range(3)), FEDSGD, {**FEDSGD, "seed": 1})
    by_round, by_bytes, loss, epsilon, bound, clip_rate = all_charts(groups)
    group = next(each for each in groups if each.config.scheme == "sqsgd")
    curve = by_round.curves["sqsgd"]
    values = np.stack([run.accuracies for run in group.runs])
    mean = [point["mean"] for point in curve]
    assert np.allclose(mean, values.mean(axis=0))
    low, high = stats.t.interval(0.95, 2, mean, stats.sem(values, axis=0))
    assert np.allclose([(point["low"], point["high"]) for point in curve], np.stack([low, high], axis=1))
    assert curve[-1]["half"] == group.accuracy[1]  # the band ends at the ± of the table
    assert {point["group"] for point in by_round.points if "low" in point} == {"sqsgd"}  # two say too little
    assert by_bytes.curves["sqsgd"][-1]["x"] == 40 * 273
    assert not by_bytes.log_x
    assert len(loss.curves) == 2
    assert list(epsilon.curves) == ["sqsgd"]
    assert epsilon.points[-1]["mean"] == 16000
    assert "low" not in epsilon.points[-1]  # nothing is estimated there
    assert "they have no guarantee: fedsgd" in epsilon.caption
    for chart in (bound, clip_rate):
        assert list(chart.curves) == ["sqsgd"]
        assert "it is constant: fedsgd" in chart.caption


# ---------------------------------------------------------------- files
