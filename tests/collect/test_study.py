"""The settings of a study."""

import dataclasses

import pytest
from snippets import ROOT

from sqsgd.federation.collect.study import MOST_SEED, Study, load_study, make_study
from sqsgd.training.settings import load_config
from sqsgd.training.train import fitted

VALUES = {"name": "digits", "dim": 3920, "users": 60000, "softmax": True}


def test_everything_is_decided_when_a_study_is_made():
    study = make_study(VALUES, "00")
    assert study.scheme == "privunit-index"
    assert (study.bound, study.slots, study.fewest) == (0.5, 1500, 750)
    simulated = fitted(load_config(ROOT / "experiments/once-mnist.toml"), study.dim)[2]
    assert (study.lr, study.bound) == (simulated.lr, simulated.bound)
    assert (study.decay, study.rounds) == (simulated.decay, simulated.rounds) == ("linear", 40)
    assert 0 <= study.seed <= MOST_SEED


def test_a_code_is_decided_too():
    study = make_study({**VALUES, "dim": 16, "scheme": "sqsgd-stateless", "bytes": 8}, "00")
    assert study.options["code"]


def test_it_is_read_as_it_was_written(tmp_path):
    study = make_study(VALUES, "00")
    study.write(tmp_path)
    assert load_study(tmp_path) == study
    assert load_study(tmp_path).id == study.id


def test_other_settings_are_another_study():
    study = make_study(VALUES, "00")
    assert dataclasses.replace(study, epsilon=4.0).id != study.id


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"users": 0}, "users = 0"),
        ({"rounds": 70000}, "rounds = 70000"),
        ({"epsilon": float("nan")}, "epsilon = nan"),
        ({"name": ""}, "name = ''"),
        ({"name": "a\nb"}, "name ="),
        ({"admission": "all"}, "admission = 'all'"),
        ({"round_seconds": 60.0}, "round_seconds = 60 must be more than ticket_seconds = 600"),
        ({"fewest": 1501}, "fewest = 1501"),
        ({"decay": "cosine"}, "decay = 'cosine'"),
        ({"users": "many"}, "users = 'many' must be of type int"),
        ({"scheme": "fedsgd"}, "pure local guarantee"),
        ({"scheme": "privunit"}, "exact arithmetic"),
        ({"scheme": "sqsgd-paper"}, "residual"),
        ({"scheme": "sqsgt"}, "sqsgt"),
        ({"seed": 2**53}, "seed ="),
    ],
)
def test_what_is_wrong_is_named(changed, words):
    with pytest.raises(ValueError, match=words):
        make_study({**VALUES, **changed}, "00")


def test_a_folder_without_a_study(tmp_path):
    with pytest.raises(ValueError, match=r"holds no study\.toml"):
        load_study(tmp_path)


def test_an_unknown_key_is_named(tmp_path):
    (tmp_path / "study.toml").write_text("usres = 3\n")
    with pytest.raises(ValueError, match="usres"):
        load_study(tmp_path)


def test_nothing_public_is_missing():
    public = make_study(VALUES, "00").public()
    assert public["epsilon"] <= 8
    assert public["message_bytes"] == 7
    assert public["identity"][0] == "privunit-index 3920"
    assert Study.__dataclass_fields__.keys() >= {"seed", "key"}
    assert "key" not in public
