"""The page on the paper's figures: made from the kept results, and from any sweep, finished or not."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from tiny_runs import SWEEP

from sqsgd.schemes import make_scheme
from sqsgd.training import train as runner
from sqsgd.training.sweep import load_sweep, make_sweep, open_folder

ROOT = Path(__file__).parents[1]
NAMES = [path.stem for path in sorted((ROOT / "docs/assets/reproduction").glob("*.json"))]
MARKS = re.compile(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"')
LENET = 119_850
MODULES = ("claims", "drawing", "reproduction", "sweep_results")


@pytest.fixture
def page(monkeypatch):
    """The program that writes the page."""
    pytest.importorskip("matplotlib", reason="the docs extra is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "pictures"))
    import reproduction

    yield reproduction
    for name in MODULES:
        sys.modules.pop(name, None)


def curve(arm, *finals, panel=""):
    from sweep_results import Curve

    seeds = {str(seed): (10.0, final) for seed, final in enumerate(finals)}
    return Curve(
        panel=panel,
        arm=arm,
        rate=0.1,
        tried={},
        epsilon=4.0,
        bytes=64,
        rounds=(2, 4),
        accuracies=seeds,
        failed=0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_kept_results_are_of_the_sweep_in_the_tree(page, name):
    (file,) = (ROOT / "experiments").rglob(f"{name}.toml")
    sweep, kept = load_sweep(file), page.read(name)
    assert (kept.title, kept.seeds, kept.rates) == (sweep.title, sweep.seeds, sweep.rates)
    assert (kept.rounds, kept.tuning_rounds) == (sweep.base["rounds"], sweep.tuning_rounds)
    assert [(each.panel, each.arm) for each in kept.curves] == [
        (cell.panel, cell.arm) for cell in sweep.cells()
    ]
    assert all(each.rounds[-1] == sweep.base["rounds"] for each in kept.curves if each.seeds)


def test_the_pages_have_the_kept_results(page):
    for path in page.PAGES:
        assert page.rebuilt(path.read_text()) == path.read_text(), "run docs/pictures/reproduction.py"
    text = "".join(path.read_text() for path in page.PAGES)
    assert set(page.BLOCK.findall(text)) == {*page.CLAIMS, "non-iid-mnist", "progress"}


@pytest.mark.parametrize("name", NAMES)
def test_the_pictures_have_the_kept_results(page, name, tmp_path):
    results = page.read(name)
    if not any(each.seeds for each in results.curves):
        assert not page.picture(name).exists()
        return
    page.draw(results, tmp_path / "again.svg")
    marks = MARKS.findall(page.picture(name).read_text())
    assert marks == MARKS.findall((tmp_path / "again.svg").read_text())
    assert len(marks) > sum(len(each.rounds) for each in results.curves)


def test_every_claim_names_arms_of_its_sweep(page):
    for name, claims in page.CLAIMS.items():
        (file,) = (ROOT / "experiments").rglob(f"{name}.toml")
        arms = {cell.arm for cell in load_sweep(file).cells()}
        assert {arm for claim in claims for arm in (*claim.better, *claim.worse)} <= arms
        assert all(page.label(arm) for arm in arms)


@pytest.mark.parametrize(
    ("above", "below", "verdict"),
    [
        ((90, 91, 92), (80, 81, 82), "agrees"),
        ((80, 81, 82), (90, 91, 92), "**differs**"),
        ((80, 81, 82), (81, 82, 83), "not clear"),
        ((90, 91), (80, 81, 82), "not yet run"),
    ],
)
def test_a_claim_is_decided_where_the_interval_of_the_difference_excludes_its_opposite(
    page, above, below, verdict
):
    from claims import Claim

    claim = Claim(says="", better=("a",), worse=("b",))
    assert claim.found([curve("a", *above), curve("b", *below)])[1] == verdict
    if verdict == "agrees":
        assert Claim(says="", better=("a",), worse=("b",), margin=20).found(
            [curve("a", *above), curve("b", *below)]
        ) == ("91.0 against 81.0 %: +10.0 ± 2.3 points", "**differs**")
        comparable = Claim(says="", better=("a",), worse=("b",), comparable=True)
        assert comparable.found([curve("a", *above), curve("b", *below)])[1] == "**differs**"
        assert comparable.found([curve("a", *above), curve("b", *above)])[1] == "agrees"


@pytest.mark.parametrize("right", [(80.0, 81.0, 82.0), (70.0, 75.0, 90.0), (80.0, 80.0, 80.1)])
def test_the_interval_of_a_difference_is_welchs(page, right):
    from claims import difference
    from scipy import stats

    left = (90.0, 91.5, 92.0)
    gap, half = difference(curve("a", *left), curve("b", *right))
    interval = stats.ttest_ind(left, right, equal_var=False).confidence_interval(0.95)
    assert gap - half == pytest.approx(interval.low)
    assert gap + half == pytest.approx(interval.high)


def test_a_sweep_is_read_as_far_as_it_has_come(page, tmp_path, monkeypatch):
    import sweep_results

    monkeypatch.setattr(sweep_results, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(page, "FOLDER", tmp_path / "kept")
    changes = {"seeds": [1, 2, 3], "tuning_rounds": 1, "base": {**SWEEP["base"], "evaluate_every": 3}}
    sweep, folder = make_sweep({**SWEEP, **changes}, "a test"), tmp_path / "runs" / "tiny"
    open_folder(sweep, folder, resume=False)
    for job in (*sweep.tuning_jobs(), *sweep.jobs({"sqsgd": 0.2, "fedsgd": 0.2})):
        if job.folder != "runs/fedsgd/seed-2":
            run, state = runner.prepare(job.config, folder / job.folder).started()
            list(run.rounds(state))
    (tmp_path / "runs" / "tiny.times").write_text("9.0 60.0 30.0\nsqsgd: stopped\n1.0 30.0 0.0\n")
    page.keep(page.collect(folder, tmp_path / "runs" / "tiny.times"))
    results = page.read("tiny")
    assert (results.runs_done, results.runs, results.cpu_minutes) == (9, 10, 2.0)
    whole, part = results.curves
    assert (whole.seeds, whole.rounds, len(whole.half_widths)) == (3, (3, 6), 2)
    assert (part.seeds, part.half_widths, part.epsilon) == (2, (), None)
    assert whole.rate in sweep.rates
    assert set(whole.tried) == {"0.05", "0.2"}
    assert whole.tried[f"{whole.rate:g}"] == max(whole.tried.values())
    monkeypatch.setattr(page, "_file", "experiments/{}.toml".format)
    shown = page.block("tiny")
    assert shown.startswith("9 of 10 runs are finished. `sqsgd compare --config experiments/tiny.toml")
    assert f"| FedSGD, not private | {part.final:.2f} % | 2 of 3 | {part.rate:g} | none |" in shown
    page.draw(results, tmp_path / "tiny.svg")
    assert "FedSGD, not private *" in (tmp_path / "tiny.svg").read_text()
    shutil.rmtree(folder / "runs" / "fedsgd")
    page.keep(page.collect(folder))
    assert f"| missing ({part.tried[f'{part.rate:g}']:.1f} % on held-out images after" in page.block("tiny")
    shutil.rmtree(folder / "tuning" / "sqsgd")
    assert page.collect(folder)["curves"][1]["rate"] is None  # not all rates have been tried


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("figure1-lenet5", (8.0, 5.9, 16.7)),
        ("figure3-tradeoff", (26.5, 5.9, 4.8, 11.3)),
        ("figure4-lenet5", (29.7, 16.4, 10.2)),
    ],
)
def test_the_page_has_the_predicted_errors(name, errors):
    (file,) = (ROOT / "experiments").rglob(f"{name}.toml")
    configs = [cell.job("runs", 0.0, 1).config for cell in load_sweep(file).cells()]
    schemes = [
        make_scheme(each.scheme, dim=LENET, epsilon=each.epsilon, bytes=each.bytes, **each.options)
        for each in configs
    ]
    assert tuple(round(scheme.nmse, 1) for scheme in schemes) == errors
    (said,) = re.findall(
        rf"begin: {name} -->.*?<!-- end -->(.*?)\n#", (ROOT / "docs/reproduction.md").read_text(), re.DOTALL
    )
    assert {str(error) for error in errors} <= set(re.findall(r"\d+\.\d", said))
