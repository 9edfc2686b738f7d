"""The privacy statement says what was promised, and no more."""

import pytest
from folders import write_run

from sqsgd.report.groups import group_runs
from sqsgd.report.statement import promises
from sqsgd.runs.reading import read_runs


@pytest.fixture
def stated(tmp_path):
    """The statement on a run with these settings, in one line."""

    def make(**settings):
        write_run(tmp_path / "run", **settings)
        ((promise, _members),) = promises(group_runs(read_runs([tmp_path])[0]))
        return " ".join([promise.short + ".", *promise.sentences])

    return make


def test_a_large_epsilon_is_called_weak(stated):
    text = stated(epsilon=400.0)
    assert "Local differential privacy, ε 400 per report, 16,000 in total." in text
    assert "A client that took part in all 40 rounds spent 40 × 400 = 16,000 in total" in text
    assert "basic composition" in text
    assert "at most about 10¹⁷⁴ times as likely" in text
    assert "An ε this large is a weak guarantee by itself" in text
    assert "this was an experiment and protects nobody" in text


def test_a_small_epsilon_bounds_the_guess(stated):
    text = stated(epsilon=1.0, rounds=5)
    assert "at most 2.718 times as likely" in text
    assert "at most 73.1\N{NO-BREAK SPACE}% of the time" in text
    assert "weak" not in text


def test_a_small_epsilon_with_a_large_total_is_called_weak(stated):
    assert "the total is a weak guarantee by itself" in stated(epsilon=1.0)


def test_secure_noise_is_not_an_experiment(stated):
    text = stated(secure=True)
    assert "The noise was secure" in text
    assert "protects nobody" not in text


def test_schemes_without_privacy_promise_nothing(stated):
    text = stated(scheme="fedsgd", notion="none")
    assert text.startswith("No privacy. These schemes have no privacy guarantee.")
    assert "noise" not in text


def test_the_central_notion_needs_a_trusted_aggregator(stated):
    text = stated(scheme="cpsgd", notion="central")
    assert "provided that the aggregator is trusted" in text
    assert "a δ that the run did not record" in text
    assert "locally" not in text


def test_epsilon_per_weight_is_stated(stated):
    text = stated(scheme="ldp-fl", notion="per-weight", epsilon=2.0)
    assert "Each weight of a report is ε-locally differentially private with ε = 2" in text
    assert "for each weight in total" in text


@pytest.mark.parametrize("settings", [{"notion": "astral"}, {"scheme": "unheard-of", "done": 4}])
def test_an_unknown_notion_is_not_promised(stated, settings):
    text = stated(**settings)
    assert text.startswith("Unknown guarantee. The meaning of its ε is unknown")
    assert "private with" not in text


def test_unfinished_runs_have_spent_so_far(stated):
    text = stated(done=10)
    assert "4,000 in total so far" in text
    assert "has so far spent 10 × 400 = 4,000" in text


def test_runs_that_sent_nothing_spent_nothing(stated):
    assert "nothing was sent and nothing was spent" in stated(done=0, error="out of memory")


def test_a_client_that_did_not_always_take_part(stated, monkeypatch):
    import folders

    line = folders._line
    halved = lambda *given: {**line(*given), "epsilon_total": 400.0 * (given[0] // 2 + 1)}  # noqa: E731
    monkeypatch.setattr(folders, "_line", halved)
    text = stated(participation="5")
    assert "The client that took part most often sent 20 reports. It spent 20 × 400 = 8,000" in text


def test_groups_with_the_same_promise_share_a_statement(tmp_path):
    write_run(tmp_path / "a", lr=0.1)
    write_run(tmp_path / "b", lr=0.2)
    write_run(tmp_path / "c", scheme="fedsgd", notion="none", best=0.99)
    found = promises(group_runs(read_runs([tmp_path])[0]))
    assert [(promise.notion, members) for promise, members in found] == [("local", [1, 2]), ("none", [0])]
