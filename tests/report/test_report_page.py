"""The page as text: what it says, and that strings of a run cannot inject anything."""

import base64
import gzip
import hashlib
import json
import re

import pytest
from folders import write_run
from tags import Tags

from sqsgd.report import page
from sqsgd.report.page import write_report

NASTY = "</script><b onmouseover=alert(1)>&'\"<!--%{x}"
PLACES = {"src", "href", "action", "srcset", "data", "poster", "formaction"}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The page of runs, without plotly's own script."""

    def make(title=None):
        monkeypatch.setattr(page, "_packed_plotly", lambda: gzip.compress(b"/* plotly */"))
        return write_report([tmp_path / "runs"], tmp_path / "out" / "report.html", title).read_text()

    return make


def test_the_page_shows_everything(tmp_path, written):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"a{seed}", seed=seed)
    write_run(tmp_path / "runs" / "b", scheme="fedsgd", notion="none", best=0.8)
    write_run(tmp_path / "runs" / "c", bytes=64, done=17)
    write_run(tmp_path / "runs" / "d", bytes=32, done=3, error="out of memory")
    found = Tags(written())
    words = " ".join(" ".join(found.words).split())
    assert "3 groups" not in words
    assert "6 runs in 4 groups, 4 finished" in words
    assert "unfinished at round 17 of 40" in words
    assert "failed at round 3 of 40: out of memory" in words
    assert "95 % confidence interval (Student's t)" in words
    assert "the band is its 95 % confidence interval" in words
    assert re.search(r"sqsgd report \S+/runs --out \S+/report\.html", words)
    assert re.search(r"sqsgd train --config \S+/a0/config\.toml --out \S+/runs-again/a0", words)
    assert "1,000 made-up images" in words


def test_the_page_can_be_used_without_eyes_or_mouse(tmp_path, written):
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", scheme="fedsgd", notion="none")
    found = Tags(written())
    assert len(found.named("h1")) == len(found.named("main")) == len(found.named("header")) == 1
    assert found.named("html")[0]["lang"] == "en"
    assert found.named("a")[0] == {"class": "skip", "href": "#main"}
    plots = [each for each in found.named("div") if each.get("class") == "plot"]
    assert len(plots) == 7
    assert all(each["role"] == "img" and len(each["aria-label"]) > 40 for each in plots)
    assert len(found.named("figure")) == len(found.named("figcaption")) == 7
    assert len(found.named("details")) == 7 + 2
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
    for word in (
        "http:",
        "https:",
        "//cdn",
        "@import",
        "url(",
        "fetch(",
        "XMLHttpRequest",
        "import(",
        "eval(",
    ):
        assert word not in content, word
    policy = next(each["content"] for each in found.named("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy
    assert "connect-src" not in policy


def test_plotly_is_the_basic_bundle_as_published_with_its_licence():
    packed = page._packed_plotly()
    # plotly.js-basic-dist-min 4.1.1, plotly-basic.min.js
    published = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == published
    assert page._part("plotly-basic.LICENSE").startswith("MIT License")


def test_the_page_has_everything_in_it_and_stays_under_one_and_a_half_megabytes(tmp_path):
    for scheme in range(16):  # as many arms as the paper's figure 5, measured in every round
        for seed in range(3):
            folder = tmp_path / f"runs/{scheme}-{seed}"
            write_run(folder, scheme=f"s{scheme}", seed=seed, rounds=600, evaluate_every=1)
    written = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert written.stat().st_size < 1_500_000
    content = written.read_text()
    assert base64.b64encode(page._packed_plotly()).decode() in content
    assert content.count("</script") == 3


def test_results_stand_above_the_promises(tmp_path, written):
    write_run(tmp_path / "runs" / "a")
    content = written()
    for above, below in (('id="results-table"', 'class="promise"'), ('href="#results"', 'href="#privacy"')):
        assert content.index(above) < content.index(below)


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
    for text in _texts(json.loads(data)["figures"]):
        assert not set(text.replace("<br>", "").replace("<extra></extra>", "")) & set("<>"), text
        assert "%{x}" not in text


def _texts(value):
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def test_scripts_and_data_cannot_end_their_own_block():
    data = page._data({"loss": {"label": "</script><b>&"}})
    assert not set(data) & set("<>&")
    assert json.loads(data)["figures"] == {"loss": {"label": "</script><b>&"}}
    assert "</script" not in page._closed('a = "</script>"; b = "<!--"')
    assert "<!--" not in page._closed('b = "<!--"')


def test_the_page_is_written_whole_or_not_at_all(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(ValueError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        write_report([tmp_path / "none"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    written = write_report([str(run)], str(tmp_path / "new" / "deep" / "report.html"), title="A title")
    assert [path.name for path in written.parent.iterdir()] == ["report.html"]


def test_a_sweeps_page_has_its_title_and_trains_again_elsewhere(tmp_path):
    sweep = tmp_path / "sweep"
    for kind, seed in (("tuning", 1000), ("runs", 1), ("runs", 2)):
        write_run(sweep / kind / "a" / f"seed-{seed}", seed=seed)
    (sweep / "sweep.toml").write_text('title = "My comparison"\n')
    for path in (sweep, sweep / "runs"):
        page = write_report([path], tmp_path / "page.html").read_text()
        assert "2 runs in 1 group, 2 finished" in page
        assert f"--out {tmp_path}/sweep-again/" in page
        assert "seed-1-again" not in page
    assert "<title>My comparison" in write_report([sweep], tmp_path / "page.html").read_text()


def test_a_repeated_seed_is_said_where_runs_are_listed(tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name)
    page = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert f"{tmp_path}/second: finished; does not count, another run has its seed" in page
