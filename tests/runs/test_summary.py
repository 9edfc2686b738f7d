"""What a run reached, promised, sent and took."""

import json
from fractions import Fraction

import pytest
from tiny_runs import finished, prepared

from sqsgd.experiments import runner

LINE = {
    "clients": 4, "epsilon": 60.0, "epsilon_total": 60.0, "bytes_up": 19, "bytes_down": 180, "seconds": 2.0,
    "seconds_gradient": 1.0, "seconds_encode": 0.5, "seconds_aggregate": 0.25,
}  # fmt: skip


def test_the_summary_counts_all_rounds_and_the_most_that_a_client_spent(tmp_path):
    finished(tmp_path / "run", clients=40, participation="5")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon_all_rounds"] == 60.0 * 12
    assert summary["epsilon_total"] < summary["epsilon_all_rounds"]


def summary(folder, *lines, **changes):
    run = prepared(folder / "run", **changes)
    return runner.summary(run, [{**LINE, **line} for line in lines])


def test_the_last_accuracy_counts_and_the_largest_message(tmp_path):
    found = summary(
        tmp_path, {"accuracy": 0.75, "test_loss": 0.5}, {"bytes_up": 36, "refused": 2},
        {"accuracy": 0.5, "test_loss": 1.0, "epsilon_total": 120.0, "refused": 1}, {"seconds": 4.0}, rounds=4,
    )  # fmt: skip
    assert (found["accuracy"], found["best_accuracy"], found["test_loss"]) == (0.5, 0.75, 1.0)
    assert (found["bytes_up"], found["bytes_up_ratio"]) == (36, 4 * 36 / 36)
    assert (found["seconds"], found["share_gradient"], found["share_aggregate"]) == (10.0, 0.4, 0.1)
    assert (found["refused"], found["rounds"], found["finished"]) == (3, 4, True)
    assert found["epsilon_all_rounds"] == 240.0


def test_a_run_that_was_cut_off_has_not_finished(tmp_path):
    assert not summary(tmp_path, {"accuracy": 0.5, "test_loss": 1.0}, rounds=2)["finished"]


def test_the_total_of_all_rounds_is_never_below_the_exact_product(tmp_path):
    """The naive product 1.1 * 20 is."""
    lines = [{"accuracy": 0.5, "test_loss": 1.0}] * 20
    found = summary(tmp_path, *lines, scheme="sqsgd-stateless", epsilon=1.1, rounds=20)
    assert Fraction(found["epsilon_all_rounds"]) >= 20 * Fraction(1.1) > Fraction(20 * 1.1)


@pytest.mark.parametrize(("secure", "words"), [(True, "secure"), (False, "protects nobody")])
def test_seeded_noise_is_called_what_it_is(tmp_path, secure, words):
    assert summary(tmp_path, {"accuracy": 0.5, "test_loss": 1.0}, secure=secure)["noise"].endswith(words)


def test_no_promise_is_a_word_that_json_can_hold(tmp_path):
    found = summary(tmp_path, {"accuracy": 0.5, "test_loss": 1.0, "epsilon": "infinity"}, scheme="fedsgd")
    assert (found["notion"], found["epsilon_all_rounds"]) == ("none", "infinity")
    json.dumps(found, allow_nan=False)
