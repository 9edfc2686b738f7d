"""`sqsgd compare` and `sqsgd ablate`: the sweep that is run, its table, progress, the status at the end."""

import json
import re
import signal
from importlib import import_module
from pathlib import Path

import pytest
from tiny_runs import SWEEP
from typed import typed

from sqsgd.cli.output import Ended
from sqsgd.runs import sweep as sweeps
from sqsgd.runs.sweep import FIGURES, experiment_file, load_sweep, make_sweep

command = import_module("sqsgd.cli.compare")

ROW = {
    "panel": "epsilon 8", "arm": "sqsgd", "accuracy": 0.91234, "value": 0.91234,
    "metric": "accuracy", "half_width": 0.0123, "runs": 3, "lr": 0.1234,
    "lr_by_rule": False, "lr_at_edge": False, "decay": "linear",
    "epsilon": 8.0, "notion": "local", "bytes_up": 273, "seconds": 12.4, "failed": [],
}  # fmt: skip

FAILED = {
    **ROW, "arm": "vqsgd", "accuracy": None, "value": None, "half_width": None, "runs": 0, "lr": None,
    "failed": ["levels = 1000 must be", "the same"],
}  # fmt: skip


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Run a comparison whose runs are done, from their table."""

    def compare(rows, *more):
        def run_sweep(_sweep, out, **_options):
            (out / "runs").mkdir()
            (out / "table.json").write_text(json.dumps(rows))
            yield "training: 1 of 2 runs", 1, 2000

        monkeypatch.setattr(sweeps, "run_sweep", run_sweep)
        monkeypatch.setattr(command, "final_page", lambda *_, **__: None)
        return typed(["sqsgd", "compare", "--schemes", "sqsgd,vqsgd", "--out", tmp_path / "out", *more])

    return compare


@pytest.mark.parametrize(("rows", "code"), [([ROW], 0), ([ROW, FAILED], 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_scheme_without_a_run_ends_with_1(ran, rows, code, as_json, tmp_path):
    done, page = ran(rows, *["--json"] * as_json), str(tmp_path / "out/report.html")
    assert done.code == code
    if as_json:
        assert json.loads(done.out) == {"folder": str(tmp_path / "out"), "page": page, "rows": rows}
        assert done.error == ""
        return
    assert "91.23%" in done.out
    assert done.out.endswith(f"written to {page}\n")
    assert done.error.endswith("training: 1 of 2 runs\n")


@pytest.mark.usefixtures("one_process")
def test_a_sweep_in_which_every_rate_fails_ends_with_its_reason(tmp_path, monkeypatch):
    """Nothing was trained: there is no folder of runs, and no page can be made of it."""
    monkeypatch.setattr(sweeps, "check_runs", lambda _: [])  # it would find the reason before
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'title = "x"\nrates = [0.1, 0.2]\ntuning_rounds = 1\n[base]\nrounds = 1\nmodel = "linear"\n'
        '[[arms]]\nscheme = "sqsgd-paper"\noptions = {levels = 1000}\n'
    )
    done = typed(["sqsgd", "compare", "--config", sweep, "--out", tmp_path / "out", "--jobs", "1"])
    assert done.code == 1
    assert re.search(r"no run finished, so no page was written: .*levels = 1000", done.error)


@pytest.fixture
def planned_runs(monkeypatch):
    """The sweeps that a command would have run."""
    found = []
    monkeypatch.setattr(command, "run", lambda *words, **options: found.append((words, options)))
    return found


def test_arms_that_cannot_learn_are_told_before_they_run(ran):
    """vqsgd needs about epsilon = ln(2 dim) for its first vertex; sqsgd does with less."""
    small = "--epsilon 0.5 --bytes 16 --rounds 20 --dataset tiny:data --model tiny:model"
    done = ran([ROW], *small.split())
    told = [line for line in done.error.splitlines() if "nothing will be learned" in line]
    assert [line.split(" at ")[0] for line in told] == ["arm 'vqsgd': vqsgd"]


def interrupted():
    signal.raise_signal(signal.SIGINT)
    raise sweeps.Interrupted


def died():
    raise OSError("a process of the sweep died (out of memory?)")


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [(interrupted, 130, "resume with --resume --out"), (died, 1, "(out of memory?); the runs in")],
)
def test_a_sweep_that_ended_early_says_how_to_go_on(tmp_path, monkeypatch, how, status, words):
    monkeypatch.setattr(sweeps, "run_sweep", lambda *_, **__: (how() for _ in range(1)))
    sweep = make_sweep(SWEEP, "a test")
    with pytest.raises(Ended) as ended:
        command.run(sweep, "tiny", tmp_path / "out", resume=False, jobs=1, as_json=True)
    assert ended.value.status == status
    assert words in ended.value.reason


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_of_that_name_is_run_with_the_values_given(planned_runs, name):
    """Called by its name or by its number."""
    plain = load_sweep(experiment_file(Path(FIGURES[name])), small=True)
    for called in (name, FIGURES[name].partition("-")[0]):
        assert typed(f"sqsgd ablate {called} --rounds 2 --jobs 3 --small").code == 0
        ((sweep, title, out), options) = planned_runs.pop()
        assert (sweep.title, title, out) == (plain.title, name, None)
        assert options == {"resume": False, "jobs": 3, "as_json": False}
        assert sweep.panels == tuple({**panel, "rounds": 2} for panel in plain.panels)


def test_every_setting_of_the_figure_can_be_changed(planned_runs):
    """Even one that its arms set: figure 1 then has one panel and three arms of 128 bytes."""
    given = "--bytes 128 --epsilon 8 --partition dirichlet:0.1 --lr 0.1 --seed 7 --option adaptive=true"
    given += " --dataset mnist5k --model lenet5 --title Mine"
    assert typed(f"sqsgd ablate figure1 {given}").code == 0
    (sweep, *_), _ = planned_runs[0]
    jobs = sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})
    assert (sweep.title, sweep.rates, sweep.seeds) == ("Mine", (0.1,), (7, 8, 9))
    assert len(jobs) == 3 * 3
    found = {(job.config.bytes, job.config.epsilon, job.config.partition) for job in jobs}
    assert found == {(128, 8.0, "dirichlet:0.1")}
    assert sorted({job.config.options["levels"] for job in jobs}) == [2, 8, 32]
    assert all(job.config.options["adaptive"] for job in jobs)
