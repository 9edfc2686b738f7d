"""The privacy statement says what was promised, and no more."""

import folders
import pytest
from folders import write_run

from sqsgd.report.groups import group_runs
from sqsgd.report.page import write_report
from sqsgd.report.statement import statements
from sqsgd.training.reading import read_runs

CENTRAL = {
    "central_epsilon": 0.13811, "central_delta": 1e-6, "central_users": 60000, "central_order": "run",
    "order_seeded": False,
}  # fmt: skip
WITHIN_ROUNDS = {
    **CENTRAL, "central_order": "round", "central_users": 1500, "order_seeded": True, "central_delta": 2.5e-7
}  # fmt: skip
ONCE = {"participation": "once", "epsilon": 4.0, "clients": 60000}
SECURE_ONCE = {**ONCE, "secure": True, "central": CENTRAL}


@pytest.fixture
def stated(tmp_path):
    """The statement on a run with these settings, in one line."""

    def make(**settings):
        write_run(tmp_path / "run", **settings)
        ((made, _labels),) = statements(group_runs(read_runs([tmp_path])[0]))
        return " ".join([made.short + ".", *made.sentences]).replace("\N{NO-BREAK SPACE}", " ")

    return make


@pytest.mark.parametrize(
    ("settings", "said", "not_said"),
    [
        ({"epsilon": 400.0}, "40 × 400 = 16,000 in total|at most about 10^174 times|is a weak guarantee", ""),
        ({"epsilon": 400.0}, "this was an experiment and protects nobody", "noise was secure"),
        ({"epsilon": 1.0, "rounds": 5}, "2.718 times as likely|at most 73.1 % of the time", "weak"),
        ({"epsilon": 1.0}, "the total is a weak guarantee by itself", ""),
        ({"secure": True}, "The noise was secure", "protects nobody"),
        ({"scheme": "fedsgd", "notion": "none"}, "No privacy. These schemes have no privacy", "noise"),
        (
            {"scheme": "cpsgd", "notion": "central"},
            "provided that the aggregator is trusted|a δ that the run did not record",
            "locally",
        ),
        ({"notion": "astral"}, "Unknown guarantee. The meaning of its ε is unknown", "private with"),
        ({"scheme": "unheard-of", "done": 4}, "Unknown guarantee.", "private with"),
        ({"done": 10}, "4,000 in total so far|has so far spent 10 × 400 = 4,000", ""),
        ({"done": 0, "error": "out of memory"}, "nothing was sent and nothing was spent", ""),
        (SECURE_ONCE, "centrally (ε, δ)-differentially private with ε = 0.139", "secret order."),
        ({**ONCE, "central": WITHIN_ROUNDS}, "the order of the 1,500 clients of a round|δ = 2.5e-07", ""),
    ],
)
def test_what_is_stated(stated, settings, said, not_said):
    text = stated(**settings)
    for words in said.split("|"):
        assert words in text
    assert not not_said or not_said not in text


def test_a_client_that_did_not_always_take_part(stated, monkeypatch):
    line = folders._line
    halved = lambda *given: {**line(*given), "epsilon_total": 400.0 * (given[0] // 2 + 1)}  # noqa: E731
    monkeypatch.setattr(folders, "_line", halved)
    assert "sent 20 reports. It spent 20 × 400 = 8,000" in stated(participation="5")


@pytest.mark.parametrize(
    "changes",
    [
        {"central": None},
        {"participation": "all"},
        {"notion": "central", "scheme": "cpsgd"},
        {"done": 20},
        *({"central": {**CENTRAL, name: value}} for name, value in [
            ("central_epsilon", None), ("central_epsilon", 4.0), ("central_epsilon", -0.1),
            ("central_delta", 0.0), ("central_users", 1), ("central_order", "day"), ("order_seeded", None),
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
