"""The page as text and its tables: what they say, and that strings of a run cannot inject anything."""

import csv
import json
import math
import re
from unittest import mock

import pytest
import vl_convert
from folders import write_run
from tags import Tags

from sqsgd.report import page
from sqsgd.report.groups import group_runs
from sqsgd.report.page import write_report, write_tables
from sqsgd.report.tables import clean
from sqsgd.training import reading

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
    for part in (
        "6 runs in 4 groups, 4 finished",
        "unfinished at round 17 of 40",
        "failed at round 3 of 40: out of memory",
        "1,000 made-up images",
        "Local differential privacy, ε 400 per report",
        "has spent the sum of their totals.",
    ):
        assert part in words
    assert re.search(r"sqsgd train --config \S+/a0/config\.toml --out again/\d", words)
    assert len(found.named("figure")) == len(found.named("figcaption")) == 6
    names = [each["id"] for _, each in found.tags if "id" in each]
    assert len(names) == len(set(names))
    for _, each in found.tags:
        for pointer in ("aria-labelledby", "href"):
            if pointer in each and not each[pointer].startswith("data:"):
                assert each[pointer].removeprefix("#") in names


def test_privacy_comes_first_and_seeded_noise_has_a_banner(tmp_path, written):
    write_run(tmp_path / "runs" / "a")
    found = Tags(written())
    sections = [each["id"] for each in found.named("section")]
    assert sections[0] == "privacy"
    assert "Seeded noise." in found.words
    write_run(tmp_path / "runs" / "b", scheme="fedsgd", notion="none")
    (tmp_path / "runs/a").rename(tmp_path / "elsewhere")
    assert "Seeded noise." not in Tags(written()).words  # nothing to protect


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


def test_a_run_that_measured_nothing_and_a_repeated_seed_are_shown(tmp_path, monkeypatch):
    folders = [write_run(tmp_path / name) for name in ("first", "second")]
    runs = [reading.read_run(folder) for folder in folders]
    for run in runs:
        for name in run.columns:
            if name != "round":
                run.columns[name][:] = math.nan
    assert math.isnan(group_runs(runs)[0].seconds)
    monkeypatch.setattr(page, "read_runs", lambda _paths: (runs, []))
    content = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert not Tags(content).named("figure")
    assert "nan" not in " ".join(Tags(content).words)
    assert "Unknown guarantee" in content
    assert f"{tmp_path}/second: finished; does not count, another run has its seed" in content


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
