"""Sweeps: what a file means, and what is to be run."""

import tomllib
from pathlib import Path

import pytest
from tiny_runs import SWEEP

from sqsgd.experiments.sweep import (
    FIGURES,
    best_rates,
    figure_file,
    figure_named,
    load_sweep,
    make_sweep,
)

FIGURE_FILES = sorted((Path(__file__).parents[2] / "experiments").glob("figure*.toml"))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("path", FIGURE_FILES, ids=lambda path: path.stem)
def test_the_files_of_the_figures_load_and_survive_a_round_trip(path, small):
    sweep = load_sweep(path, small=small)
    assert make_sweep(tomllib.loads(sweep.to_toml()), "again") == sweep
    assert sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})


def test_every_ablation_has_its_file():
    assert {figure_file(name).stem for name in FIGURES.values()} == set(FIGURES.values())


def test_the_small_version_is_smaller():
    for name in FIGURES.values():
        whole, small = (load_sweep(figure_file(name), small=small) for small in (False, True))
        rounds = [
            sum(job.config.rounds for job in sweep.jobs({cell.name: 0.1 for cell in sweep.cells()}))
            for sweep in (whole, small)
        ]
        assert rounds[1] < rounds[0] / 10


def test_panels_times_arms_times_seeds():
    sweep = make_sweep(
        {**SWEEP, "panels": [{"epsilon": 60.0}, {"epsilon": 20.0, "arms": [{"scheme": "sqsgd"}]}]}, ""
    )
    assert [(cell.panel, cell.arm) for cell in sweep.cells()] == [
        ("epsilon 60", "sqsgd"),
        ("epsilon 60", "fedsgd"),
        ("epsilon 20", "sqsgd"),
    ]
    assert len(sweep.tuning_jobs()) == 3 * 2
    jobs = sweep.jobs({cell.name: 0.05 for cell in sweep.cells()})
    assert len(jobs) == 3 * 2
    assert {job.config.epsilon for job in jobs} == {60.0, 20.0}
    assert len({job.folder for job in jobs + sweep.tuning_jobs()}) == 12
    assert all(job.config.validation == 0.1 for job in sweep.tuning_jobs())
    assert all(job.config.validation == 0 for job in jobs)
    assert all(job.config.evaluate_every == job.config.rounds for job in sweep.tuning_jobs())


def test_arms_and_panels_can_be_named():
    arms = [{"scheme": "sqsgd", "name": "Ours"}, {"scheme": "fedsgd"}]
    sweep = make_sweep({**SWEEP, "panels": [{"name": "ε = 60", "epsilon": 60.0}], "arms": arms}, "")
    assert [(cell.panel, cell.arm) for cell in sweep.cells()] == [("ε = 60", "Ours"), ("ε = 60", "fedsgd")]
    jobs = sweep.jobs({cell.name: 0.05 for cell in sweep.cells()})
    assert {job.folder for job in jobs} >= {"runs/ε-60_Ours/seed-1", "runs/ε-60_fedsgd/seed-2"}
    assert {job.config.name for job in jobs} == {"ε = 60: Ours", "ε = 60: fedsgd"}
    assert make_sweep(tomllib.loads(sweep.to_toml()), "again") == sweep


def test_without_names_nothing_is_named():
    jobs = make_sweep(SWEEP, "").jobs({"sqsgd": 0.1})
    assert {job.config.name for job in jobs} == {""}


def test_options_of_base_panel_and_arm_are_merged():
    base = {**SWEEP["base"], "options": {"reach": 2.0, "levels": 4}}
    arms = [{"scheme": "sqsgd-paper", "options": {"levels": 16}}]
    (cell,) = make_sweep({**SWEEP, "base": base, "arms": arms}, "").cells()
    assert cell.values["options"] == {"reach": 2.0, "levels": 16}


def test_each_run_has_its_own_ledgers():
    sweep = make_sweep({**SWEEP, "base": {**SWEEP["base"], "ledgers": "kept"}}, "")
    folders = [job.config.ledgers for job in sweep.jobs({"sqsgd": 0.1})]
    assert folders == ["kept/runs/sqsgd/seed-1", "kept/runs/sqsgd/seed-2"]


@pytest.mark.parametrize("name", ["figure1", "figure1-communication", "communication"])
def test_figures_have_short_names(name):
    assert figure_named(name) == ("communication", "figure1-communication")
    if name != "communication":
        assert figure_file(name).stem == "figure1-communication"
    with pytest.raises(ValueError, match="there is no 'figure5'"):  # there are three
        figure_file("figure5")


def test_choosing_may_take_fewer_rounds():
    sweep = make_sweep({**SWEEP, "tuning_rounds": 2}, "")
    assert {job.config.rounds for job in sweep.tuning_jobs()} == {2}
    assert {job.config.rounds for job in sweep.jobs({"sqsgd": 0.1})} == {6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": []}, "arms is empty"),
        ({"rates": []}, "rates is empty"),
        ({"seeds": [1, 1]}, "holds a value twice"),
        ({"seeds": [1000]}, "reserved for the tuning runs"),
        ({"rates": ["fast"]}, "rates"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"arms": ["sqsgd"]}, r"write each of arms as a table"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsgd"}]}, "are the same"),
        ({"arms": [{"scheem": "sqsgd"}]}, "did you mean 'scheme'"),
        ({"base": {"epsilon": -1.0}}, "epsilon"),
        ({"title": 3}, "title"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsg"}]}, "did you mean 'sqsgd'"),
        ({"validation": 2.0}, "validation"),
        ({"choose_by": "los"}, "must be one of metric, loss"),
        ({"base": {"lr": 0.1}}, "all arms and panels share rates"),
        ({"arms": [{"scheme": "sqsgd", "seed": 3}]}, "all arms and panels share seeds"),
        ({"arms": [{"scheme": "sqsgd", "name": "../.."}]}, "must hold a letter or a digit"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        make_sweep({**SWEEP, **change}, "a test")


def test_the_best_rate_wins():
    assert best_rates([("a", 0.1, 0.5), ("a", 0.3, 0.7), ("b", 0.1, 0.2), ("b", 0.3, 0.1)]) == {
        "a": 0.3,
        "b": 0.1,
    }
