"""One report per user: who is asked, what it costs in all, and that it learns."""

import dataclasses
import json

import pytest
from tiny_runs import ONCE, finished, loaded, prepared, started

from sqsgd.cli.train import describe
from sqsgd.learning.problem import LearningProblem
from sqsgd.report.page import write_report
from sqsgd.training.settings import load_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("once") / "run"
    finished(path, ONCE)
    return path


def test_the_total_is_the_epsilon_of_one_report(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["epsilon"] == summary["epsilon_total"] == summary["epsilon_all_rounds"] == 8.0
    assert summary["scheme"] == load_config(folder / "config.toml").scheme == "privunit-index"
    assert summary["bytes_up"] <= 64
    assert summary["accuracy"] > 0.5  # of 4,000 users; chance is 0.1


def killed_in_round(folder, number, **changes):
    """A run whose process ended while clients answered the round; what it had sent until then."""
    run, asked = prepared(folder, ONCE, clients=40, rounds=4, **changes), []

    class Watched(LearningProblem):
        """The process ends when all clients of the round have been asked, or half of them if one by one."""

        def gradient_rows(self, weights, round, cohort):
            asked.extend(cohort.tolist())
            if round == number:
                raise SystemExit
            return super().gradient_rows(weights, round, cohort)

        def gradients(self, weights, round, cohort):
            found = run.problem.gradients(weights, round, cohort)
            for place, (client, each) in enumerate(zip(cohort, found, strict=True)):
                if round == number and place == 5:
                    raise SystemExit
                asked.append(client)
                yield each

    problem = Watched(**vars(run.problem))
    with pytest.raises(SystemExit):
        list(started(dataclasses.replace(run, problem=problem)))
    return asked


@pytest.mark.parametrize("changes", [{"secure": True}, {"ledgers": "users"}])
def test_after_a_crash_nobody_answers_twice_and_the_run_goes_on(tmp_path, monkeypatch, changes):
    """With secure noise or ledgers, the interrupted round cannot be repeated: it is counted as spent."""
    monkeypatch.chdir(tmp_path)
    asked = killed_in_round(tmp_path / "run", 1, **changes)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)  # the ledgers stay where they were
    run, state = loaded(tmp_path / "run").resumed()
    assert (state.round, state.lost) == (1, 1)
    later = []

    class Noting(LearningProblem):
        def _chosen(self, round, cohort):
            later.extend(cohort.tolist())
            return super()._chosen(round, cohort)

    records = list(dataclasses.replace(run, problem=Noting(**vars(run.problem))).rounds())
    assert [(record.round, record.clients, record.refused) for record in records] == [
        (1, 0, 0), (2, 10, 0), (3, 10, 0),
    ]  # fmt: skip
    assert len(set(later)) == 20
    assert not set(later) & set(asked)  # the order continued
    assert len(asked) in (15, 20)  # the first round, and half or all of the second
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon_total"] == 8.0
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "cannot be read" not in (tmp_path / "page.html").read_text()
    assert list(elsewhere.iterdir()) == []


def test_a_seeded_round_is_repeated_and_rounds_cannot_be_changed(tmp_path):
    """Its bytes are the same; more rounds are smaller ones, so that somebody would be asked twice."""
    killed_in_round(tmp_path / "run", 1)
    assert loaded(tmp_path / "run").resumed()[1].lost == -1
    with pytest.raises(ValueError, match="rounds = 8, but this run was begun with 4"):
        prepared(tmp_path / "run", ONCE, clients=40, rounds=8).resumed()


def test_refusals_are_told(tmp_path):
    finished(tmp_path / "first", ONCE, clients=20, rounds=2, ledgers=str(tmp_path / "ledgers"))
    records = finished(tmp_path / "second", ONCE, clients=60, rounds=2, ledgers=str(tmp_path / "ledgers"))
    summary = json.loads((tmp_path / "second" / "summary.json").read_text())
    assert summary["refused"] == sum(record.refused for record in records) == 20
    assert "20 reports, by their clients' own ledgers" in describe(summary, tmp_path)
