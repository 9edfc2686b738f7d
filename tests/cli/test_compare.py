"""`sqsgd compare`: the table at the end, progress on the way, and the status if a scheme has no run."""

import json
import re

import pytest
from sweep_rows import FAILED, ROW
from typed import typed

from sqsgd.cli import _sweeps
from sqsgd.experiments import sweep_runner
from sqsgd.experiments.sweep_runner import Tick


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Run a comparison whose runs are done, from their table."""

    def compare(rows, *more):
        def run_sweep(_sweep, out, **_options):
            (out / "runs").mkdir()
            (out / "table.json").write_text(json.dumps(rows))
            yield Tick(stage="training", rounds=1, of_rounds=2000, runs=1, of_runs=2, failed=1)

        monkeypatch.setattr(sweep_runner, "run_sweep", run_sweep)
        monkeypatch.setattr(_sweeps, "final_page", lambda *_: None)
        return typed(["sqsgd", "compare", "--schemes", "sqsgd,vqsgd", "--out", tmp_path / "out", *more])

    return compare


@pytest.mark.parametrize(("rows", "code"), [([ROW], 0), ([ROW, FAILED], 1)])
def test_a_scheme_without_a_run_ends_with_1(ran, rows, code, tmp_path):
    done = ran(rows, "--json")
    assert done.code == code
    page = str(tmp_path / "out/report.html")
    assert json.loads(done.out) == {"folder": str(tmp_path / "out"), "page": page, "rows": rows}
    assert done.error == ""


def test_where_every_run_failed_the_reason_is_said(ran):
    done = ran([FAILED])
    assert done.code == 1
    assert f"no run finished, so there is no page: {FAILED['failed'][0]}" in done.error


def test_a_sweep_in_which_every_rate_fails_ends_with_its_reason(tmp_path, monkeypatch):
    """Nothing was trained: there is no folder of runs, and no page can be made of it."""
    monkeypatch.setattr(sweep_runner, "check_runs", lambda _: [])  # it would find the reason before
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'title = "x"\nrates = [0.1, 0.2]\ntuning_rounds = 1\n[base]\nrounds = 1\nmodel = "linear"\n'
        '[[arms]]\nscheme = "sqsgd-paper"\noptions = {levels = 1000}\n'
    )
    done = typed(["sqsgd", "compare", "--config", sweep, "--out", tmp_path / "out", "--jobs", "1"])
    assert done.code == 1
    assert re.search(r"no run finished, so there is no page: .*levels = 1000", done.error)


def test_without_json_the_table_and_the_progress_are_printed(ran, tmp_path):
    done = ran([ROW])
    assert "91.23% ± 1.23" in done.out
    assert "95 % confidence interval (Student's t)" in done.out
    assert done.out.endswith(f"written to {tmp_path / 'out/report.html'}\n")
    assert done.error == "training: 1 of 2 runs, 1 failed, round 1 of 2,000\n"


def test_settings_of_a_file_are_not_given_twice(tmp_path):
    (tmp_path / "sweep.toml").write_text('title = "x"\n[[arms]]\nscheme = "sqsgd"\n')
    done = typed(["sqsgd", "compare", "--config", tmp_path / "sweep.toml", "--seeds", "3"])
    assert done.code == 2
    assert "seeds: set in the --config file" in done.error


def planned(monkeypatch, *arguments):
    """The sweep that a command would run."""
    sweeps = []
    monkeypatch.setattr(_sweeps, "run", lambda sweep, *_, **__: sweeps.append(sweep))
    done = typed(["sqsgd", "compare", *arguments])
    assert (done.code, done.error) == (0, "")
    return sweeps[0]


def configurations(sweep):
    return [job.config for job in sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})]


def test_every_option_of_train_is_taken(monkeypatch):
    given = {
        "partition": "dirichlet:0.1", "batch": 8, "participation": "5", "features": "hog", "model": "linear",
        "optimizer": "adam", "decay": "linear", "bound": 2.0, "engine": "local", "clients": 20,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    words += ["--option", "reach=2.0", "--secure", "--tensorboard", "--lr", "0.5", "--seed", "4"]
    sweep = planned(monkeypatch, "--schemes", "sqsgd,privunit-inf", "--seeds", "2", *words)
    for config in configurations(sweep):
        assert {name: getattr(config, name) for name in given} == given
        assert (config.secure, config.tensorboard, config.options) == (True, True, {"reach": 2.0})
    assert (sweep.rates, sweep.seeds) == ((0.5,), (4, 5))


def test_arms_and_panels_in_words(monkeypatch):
    arms = ["--arm", "Ours: sqsgd", "--arm", "K = 16: sqsgd-paper levels=16 bytes=64", "--arm", "fedsgd"]
    panels = ["--panel", "IID: partition=iid", "--panel", "One class each: partition=shards:1 clients=100"]
    sweep = planned(monkeypatch, *arms, *panels, "--bytes", "128", "--seeds", "1", "--title", "Mine")
    assert sweep.title == "Mine"
    assert [cell.arm for cell in sweep.cells()] == 2 * ["Ours", "K = 16", "fedsgd"]
    assert [cell.panel for cell in sweep.cells()] == 3 * ["IID"] + 3 * ["One class each"]
    found = configurations(sweep)
    assert [config.bytes for config in found] == 2 * [128, 64, 128]
    assert found[1].options == {"levels": 16}
    assert [config.partition for config in found] == 3 * ["iid"] + 3 * ["shards:1"]
    assert found[4].name == "One class each: K = 16"


@pytest.mark.parametrize("name", ["figure5-mnist", "experiments/figure5-mnist.toml", "figure1"])
def test_files_of_the_package_are_found_from_anywhere(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    sweep = planned(monkeypatch, "--config", name, "--small")
    assert sweep.title.startswith(f"Figure {name.rpartition('figure')[2][0]}")


def test_arms_that_cannot_learn_are_told_before_they_run(ran):
    """vqsgd needs about epsilon = ln(2 dim) for its first vertex; sqsgd does with less."""
    small = "--epsilon 0.5 --bytes 16 --rounds 20 --dataset tiny:data --model tiny:model"
    done = ran([ROW], *small.split())
    told = [line for line in done.error.splitlines() if "nothing will be learned" in line]
    assert [line.split(" at ")[0] for line in told] == ["arm 'vqsgd': vqsgd"]
