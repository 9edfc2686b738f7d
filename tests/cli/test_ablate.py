"""`sqsgd ablate`: one of the paper's figures, with values of the command line in every run."""

import pytest
from typed import typed

from sqsgd.cli import _sweeps
from sqsgd.experiments.sweep import FIGURES, figure_file, load_sweep


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_of_that_name_is_run_with_the_values_given(monkeypatch, name):
    ran = []
    monkeypatch.setattr(_sweeps, "run", lambda *words, **options: ran.append((words, options)))
    done = typed(f"sqsgd ablate {name} --rounds 2 --jobs 3 --small")
    assert (done.code, done.error) == (0, "")
    ((sweep, title, out), options), plain = ran[0], load_sweep(figure_file(FIGURES[name]), small=True)
    assert (title, out, options) == (name, None, {"resume": False, "jobs": 3, "as_json": False})
    assert sweep.title == plain.title
    assert {panel["rounds"] for panel in sweep.panels} == {2}
    assert sweep.panels == tuple({**panel, "rounds": 2} for panel in plain.panels)
