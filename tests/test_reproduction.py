"""The page on the paper's figures: made from the kept results, and from any sweep, finished or not."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from tiny_runs import SWEEP

from sqsgd import central_guarantee, make_scheme
from sqsgd.training import train as runner
from sqsgd.training.sweep import load_sweep, make_sweep, open_folder

ROOT = Path(__file__).parents[1]
NAMES = [path.stem for path in sorted((ROOT / "docs/assets/reproduction").glob("*.json"))]
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
    given = {"rate": 0.1, "tried": {}, "epsilon": 4.0, "bytes": 64, "rounds": (2, 4), "failed": 0}
    return Curve(panel=panel, arm=arm, accuracies=seeds, **given)


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

    def found(below, **options):
        claim = Claim(says="", better=("a",), worse=("b",), **options)
        return claim.found([curve("a", *above), curve("b", *below)])[1]

    assert found(below) == verdict
    if verdict == "agrees":
        assert found(below, margin=20) == "**differs**"
        assert found(below, comparable=True) == "**differs**"
        assert found(above, comparable=True) == "agrees"


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
    assert page.block("tiny").startswith("9 of 10 runs are finished.")
    page.draw(results, tmp_path / "tiny.svg")
    shutil.rmtree(folder / "tuning" / "sqsgd")
    assert page.collect(folder)["curves"][1]["rate"] is None  # not all rates have been tried


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("name", ["accuracy_against_epsilon", "accuracy_against_users"])
def test_the_central_epsilons_of_pictures_are_certified(name):
    """Rounded up, and by less than one per cent."""
    for point in importlib.import_module(name).points():
        scheme = make_scheme(
            "privunit-index", dim=getattr(point, "weights", 3920), epsilon=float(point.epsilon)
        )
        found = central_guarantee(scheme, getattr(point, "users", 60_000), 1e-6).epsilon
        assert found <= point.central <= 1.01 * found
