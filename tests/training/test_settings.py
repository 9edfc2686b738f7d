"""Settings and configurations: complete, reloadable, and clear about what is wrong."""

import dataclasses

import pytest

from sqsgd import RunConfig, make_scheme
from sqsgd.runs.train import _ledgers, fitted
from sqsgd.training import Settings
from sqsgd.training.settings import load_config, make_config


def test_a_written_configuration_is_complete_and_reloads(tmp_path):
    config = RunConfig(
        epsilon=9.0, scheme="sqsgd-paper", options={"levels": 8, "adaptive": True}, lr=0.25, seed=2**63
    )
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert load_config(path) == config
    assert all(entry.name in path.read_text() for entry in dataclasses.fields(RunConfig))
    path.write_text('epsilon = 100\nparticipation = "3"\n')  # the rest: defaults
    assert load_config(path) == RunConfig(epsilon=100.0, participation="3")
    path.write_text("epsilon = = 3")
    with pytest.raises(ValueError, match="is not valid TOML"):
        load_config(path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilom": 3.0}, "unknown key 'epsilom' = 3.0; did you mean 'epsilon'"),
        ({"track": 1}, "track = 1 must be of type bool"),
        ({"participation": "most"}, "participation = 'most' must be 'all', 'once', a number"),
        ({"minibatch": True}, "needs a number of clients as participation, not 'all'"),
        ({"minibatch": True, "participation": "once", "rounds": 2}, "not 'once'"),
    ],
)
def test_mistakes_name_the_key_the_value_and_what_would_do(values, words):
    with pytest.raises(ValueError, match=words):
        make_config(values)


def test_who_draws_the_noise_has_no_default():
    """A training that forgets to say so must not draw its noise from the public seed."""
    with pytest.raises(TypeError, match="secure"):
        Settings(epsilon=8.0, seed=1)
    with pytest.raises(TypeError, match="epsilon"):  # nor has the budget
        RunConfig()
    for unclear in (None, 1, "yes"):
        with pytest.raises(ValueError, match=r"secure = .* must be true or false"):
            Settings(epsilon=8.0, seed=1, secure=unclear)
    assert Settings(epsilon=8.0, seed=1, secure=False).secure is False


def run_settings(**values):
    budget = {"scheme": "sqsgd-stateless", "epsilon": 8.0, "bytes": 2048, "rounds": 5, "clients": 100}
    return fitted(make_config({**budget, **values}), 3920)[2]


@pytest.mark.parametrize(("participation", "cap"), [("all", 40.0), ("5", 40.0), ("once", 8.0)])
def test_a_clients_cap_is_what_the_run_is_announced_to_cost(participation, cap):
    for ledgers in ("users", ""):
        config = run_settings(ledgers=ledgers, participation=participation)
        made = _ledgers(config, config.make_scheme(3920, once=config.once))
        assert made.max_epsilon == cap if ledgers else made is None


def test_what_is_given_wins_over_the_rules():
    ruled = run_settings(features="hog", model="linear", participation="once")
    assert ruled.bound != run_settings(participation="once").bound  # of a softmax on features of unit length
    given = run_settings(features="hog", model="linear", participation="once", lr=0.5, bound=3.0)
    assert (given.lr, given.bound) == (0.5, 3.0)
    assert ruled.lr != 0.5


@pytest.mark.parametrize("scheme", ["sqsgd-stateless", "dgc"])
def test_factors_of_a_residual_that_is_not_kept_are_refused(scheme):
    """Also with an average or a velocity, which they would not weigh."""
    made = make_scheme(scheme, dim=1000, epsilon=8.0, bytes=32)
    with pytest.raises(ValueError, match=r"beta = 2: .* keeps no residual to weigh"):
        run_settings(scheme=scheme, beta=2.0).fitted(made, 10)
