"""The privacy statement says what was promised, and no more."""

import pytest
from folders import write_run

from sqsgd.report.groups import group_runs
from sqsgd.report.page import write_report
from sqsgd.report.statement import statements
from sqsgd.training.reading import read_runs


@pytest.fixture
def stated(tmp_path):
    """The statement on a run with these settings, in one line."""

    def make(**settings):
        write_run(tmp_path / "run", **settings)
        ((made, _labels),) = statements(group_runs(read_runs([tmp_path])[0]))
        return " ".join([made.short + ".", *made.sentences])

    return make


def test_a_large_epsilon_is_called_weak(stated):
    text = stated(epsilon=400.0)
    assert "Local differential privacy, ε 400 per report, 16,000 in total." in text
    assert "A client that took part in all 40 rounds spent 40 × 400 = 16,000 in total" in text
    assert "basic composition" in text
    assert "at most about 10¹⁷⁴ times as likely" in text
    assert "An ε this large is a weak guarantee by itself" in text
    assert "this was an experiment and protects nobody" in text


def test_promises_in_the_same_words_are_one(tmp_path):
    for rounds in (40, 60):  # which says nothing of a scheme without a promise
        write_run(tmp_path / f"{rounds}", scheme="fedsgd", notion="none", rounds=rounds)
        write_run(tmp_path / f"private-{rounds}", rounds=rounds)
    made = statements(group_runs(read_runs([tmp_path])[0]))
    assert sorted(len(members) for _, members in made) == [1, 1, 2]


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
    found = statements(group_runs(read_runs([tmp_path])[0]))
    assert [(made.notion, len(labels)) for made, labels in found] == [("local", 2), ("none", 1)]


CENTRAL = {
    "central_epsilon": 0.13811, "central_delta": 1e-6, "central_users": 60000, "central_order": "run",
    "order_seeded": False,
}  # fmt: skip
ONCE = {"participation": "once", "epsilon": 4.0, "clients": 60000}


def test_one_report_per_user_states_both_guarantees(stated):
    text = stated(**ONCE, secure=True, central=CENTRAL)
    assert "; central ε\N{NO-BREAK SPACE}0.1382." in text
    assert "centrally (ε, δ)-differentially private with ε = 0.1382 and δ = 10⁻⁶" in text
    assert "if the operator keeps the order of the 60,000 clients and their reports to itself" in text
    assert "guesses right at most 53.4\N{NO-BREAK SPACE}% of the time" in text
    assert "does not cover the training loss and the times that this page shows" in text
    assert "secret order." not in text


def test_a_seeded_order_and_one_within_rounds_are_told(stated):
    about = {"central_order": "round", "central_users": 1500, "order_seeded": True, "central_delta": 2.5e-7}
    text = stated(**ONCE, central={**CENTRAL, **about})
    assert "the order of the 1,500 clients of a round" in text
    assert "Only the order within rounds counts" in text
    assert "δ = 2.5 × 10⁻⁷" in text
    assert "would guarantee with secure noise and a secret order." in text


@pytest.mark.parametrize(
    "changes",
    [
        {"central": None},
        {"participation": "all"},
        {"notion": "central", "scheme": "cpsgd"},
        {"done": 20},
        *({"central": {**CENTRAL, name: value}} for name, value in [
            ("central_epsilon", None), ("central_epsilon", "nan"), ("central_epsilon", 4.0),
            ("central_epsilon", -0.1), ("central_delta", 0.0), ("central_delta", 1.0), ("central_users", 1),
            ("central_users", "infinity"), ("central_order", "day"), ("order_seeded", None),
        ]),
    ],
    ids=str,
)  # fmt: skip
def test_no_central_number_without_all_that_it_rests_on(stated, changes):
    text = stated(**{**ONCE, "central": CENTRAL, **changes})
    assert "centrally" not in text
    assert "central ε" not in text


def test_a_group_states_its_weakest_guarantee(tmp_path):
    for seed, epsilon in enumerate((0.1, 0.3, 0.2)):
        central = {**CENTRAL, "central_epsilon": epsilon}
        write_run(tmp_path / "runs" / f"{seed}", **ONCE, seed=seed, central=central)
    ((made, _),) = statements(group_runs(read_runs([tmp_path])[0]))
    assert made.central.epsilon == 0.3
    write_report([tmp_path], tmp_path / "page.html")
    assert "Central ε and δ add up too." in (tmp_path / "page.html").read_text()
    write_run(tmp_path / "runs" / "3", **ONCE, seed=3)
    ((made, _),) = statements(group_runs(read_runs([tmp_path])[0]))
    assert made.central is None
