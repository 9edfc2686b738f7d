"""`sqsgd ablate`: one of the paper's figures, with values of the command line in every run."""

import pytest
from typed import typed

from sqsgd.cli import _sweeps
from sqsgd.experiments.sweep import FIGURES, figure_file, load_sweep


@pytest.fixture
def ran(monkeypatch):
    """The sweeps that a command would have run."""
    sweeps = []
    monkeypatch.setattr(_sweeps, "run", lambda *words, **options: sweeps.append((words, options)))
    return sweeps


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("called", ["by its name", "by its figure"])
def test_the_figure_of_that_name_is_run_with_the_values_given(ran, name, called):
    typed_name = name if called == "by its name" else FIGURES[name].partition("-")[0]
    done = typed(f"sqsgd ablate {typed_name} --rounds 2 --jobs 3 --small")
    assert (done.code, done.error) == (0, "")
    ((sweep, title, out), options), plain = ran[0], load_sweep(figure_file(FIGURES[name]), small=True)
    assert (title, out) == (name, None)
    assert options == {"resume": False, "jobs": 3, "as_json": False}
    assert sweep.title == plain.title
    assert {panel["rounds"] for panel in sweep.panels} == {2}
    assert sweep.panels == tuple({**panel, "rounds": 2} for panel in plain.panels)


def test_every_setting_of_the_figure_can_be_changed(ran):
    """Even one that its arms set: figure 1 then has one panel and three arms of 128 bytes."""
    given = (
        "--bytes 128 --dataset mnist5k --model lenet5 --epsilon 8 --partition dirichlet:0.1 --lr 0.1 --seed 7"
    )
    assert typed(f"sqsgd ablate figure1 {given} --option adaptive=true --title Mine").code == 0
    (sweep, *_), _ = ran[0]
    jobs = sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})
    assert (sweep.title, sweep.rates, sweep.seeds) == ("Mine", (0.1,), (7, 8, 9))
    assert len(jobs) == 3 * 3
    found = {(job.config.bytes, job.config.epsilon, job.config.partition) for job in jobs}
    assert found == {(128, 8.0, "dirichlet:0.1")}
    assert sorted({job.config.options["levels"] for job in jobs}) == [2, 8, 32]
    assert all(job.config.options["adaptive"] for job in jobs)


def test_another_figure_is_not_resumed(ran, tmp_path):
    for name, file in FIGURES.items():
        out = tmp_path / name
        out.mkdir()
        (out / "sweep.toml").write_text(load_sweep(figure_file(file), small=True).to_toml())
        assert typed(["sqsgd", "ablate", name, "--resume", "--out", out]).code == 0
    done = typed(["sqsgd", "ablate", "figure2", "--resume", "--out", tmp_path / "communication"])
    assert done.code == 2
    assert "communication holds another sweep than subsampling" in done.error
    assert len(ran) == len(FIGURES)
