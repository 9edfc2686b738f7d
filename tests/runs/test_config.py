"""Configuration files: complete, reloadable, and clear about what is wrong."""

import dataclasses

import pytest
from sqsgd.training.settings import RunConfig, load_config, make_config


def test_a_written_configuration_is_complete_and_reloads(tmp_path):
    config = RunConfig(scheme="sqsgd-paper", options={"levels": 8, "adaptive": True}, lr=0.25, seed=2**63)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert load_config(path) == config
    for entry in dataclasses.fields(RunConfig):
        assert entry.name in path.read_text()


def test_keys_left_out_have_their_defaults(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text('epsilon = 100\nparticipation = "3"\n')
    assert load_config(path) == RunConfig(epsilon=100.0, participation="3")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epsilom": 3.0}, "unknown key 'epsilom' = 3.0; did you mean 'epsilon'"),
        ({"xyzzy": 1}, "known: scheme"),
        ({"epsilon": "400"}, "epsilon = '400' must be of type float"),
        ({"epsilon": -1.0}, "epsilon = -1"),
        ({"rounds": 1.5}, "rounds = 1.5 must be of type int"),
        ({"rounds": 0}, "rounds = 0"),
        ({"track": 1}, "track = 1 must be of type bool"),
        ({"clients": True}, "clients = True must be of type int"),
        ({"participation": "most"}, "participation = 'most' must be 'all', 'once' or a number"),
        ({"participation": "11"}, "at most clients = 10"),
        ({"minibatch": True}, "needs a number of clients as participation, not 'all'"),
        ({"minibatch": True, "participation": "once", "rounds": 2}, "not 'once'"),
        ({"optimizer": "sgdm"}, "optimizer = 'sgdm' must be one of sgd, momentum, adam"),
        ({"engine": "warp"}, "engine = 'warp' must be one of local"),
        ({"options": 3}, "options = 3 must be of type dict"),
    ],
)
def test_mistakes_name_the_key_the_value_and_what_would_do(values, words):
    with pytest.raises(ValueError, match=words):
        make_config(values)


def test_broken_toml_is_named(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("epsilon = = 3")
    with pytest.raises(ValueError, match="is not valid TOML"):
        load_config(path)
