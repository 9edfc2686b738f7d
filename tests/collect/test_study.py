"""A study: its settings, its folder, and invitations, which cannot be forged."""

import base64
import dataclasses
import hashlib
import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import at_once, invited, make
from snippets import ROOT

from sqsgd.federation.collect.rounds import create_study, opened
from sqsgd.federation.collect.study import (
    KEY,
    MOST_SEED,
    invitation_number,
    invitations,
    load_study,
    make_study,
    new_keys,
    read_key,
)
from sqsgd.federation.collect.tokens import KEY as TOKEN_KEY
from sqsgd.runs.train import fitted
from sqsgd.training.settings import load_config

VALUES = {"name": "digits", "dim": 3920, "users": 60000, "softmax": True}


def test_everything_is_decided_when_a_study_is_made(tmp_path):
    study = make_study({**VALUES, "epsilon": 8})
    assert (study.scheme, study.bound, study.expected, study.fewest) == ("privunit-index", 0.5, 1500, 750)
    assert (study.visits, study.reports, study.options["rotation"]) == ("drawn", 1, "round")
    simulated = fitted(load_config(ROOT / "experiments/once-mnist.toml"), study.dim)[2]
    assert (study.lr, study.bound) == (simulated.lr, simulated.bound)
    assert (study.decay, study.rounds) == (simulated.decay, simulated.rounds) == ("linear", 40)
    assert 0 <= study.seed <= MOST_SEED
    sparse = {"scheme": "sqsgd-stateless", "bytes": 8, "options": {"code": "sparse"}}
    coded = make_study({**VALUES, "dim": 160, **sparse})
    assert coded.made_scheme.symbols == 512
    for each in (study, coded):
        each.write(tmp_path)
        assert load_study(tmp_path) == each
        assert load_study(tmp_path).id == each.id != dataclasses.replace(each, begins=5).id
    public = study.public()
    assert (public["message_bytes"], public["identity"][0]) == (7, "privunit-index 3920")
    assert public["epsilon"] <= 8
    assert "key" not in public
    assert hashlib.sha256(study.description).hexdigest() == study.id
    assert json.loads(study.description) == public


def test_the_better_code_is_chosen():
    """A sparse code where its bytes buy more, else the index."""
    large = make_study({**VALUES, "softmax": False, "epsilon": 40.0, "bytes": 48})
    assert (large.scheme, large.options) == ("sqsgd-stateless", {"rotation": "round", "code": "sparse"})
    index = make_study({**VALUES, "softmax": False, "epsilon": 40.0, "bytes": 48, "scheme": "privunit-index"})
    assert large.made_scheme.nmse < index.made_scheme.nmse


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"users": 0}, "users = 0"),
        ({"rounds": 70000}, "rounds = 70000"),
        ({"name": ""}, "name = ''"),
        ({"name": "a\nb"}, "name ="),
        ({"admission": "all"}, "admission = 'all'"),
        ({"visits": "twice"}, "visits = 'twice'"),
        ({"reports": 0}, "reports = 0"),
        ({"relay": "http://relay.example"}, "relay = 'http://relay.example' must begin with https"),
        ({"scheme": "sqsgd-stateless", "options": {"code": "signs"}}, "reports that can be counted"),
        ({"scheme": "privunit-index", "options": {"rotation": "client"}}, "reports that can be counted"),
        ({"fewest": 1501}, "fewest = 1501"),
        ({"users": "many"}, "users = 'many' must be of type int"),
        ({"scheme": "fedsgd"}, "rotation"),
        ({"seed": 2**53}, "seed ="),
    ],
)
def test_what_is_wrong_is_named(changed, words):
    with pytest.raises(ValueError, match=words):
        make_study({**VALUES, **changed})


def test_an_unknown_key_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no study\.toml"):
        load_study(tmp_path)
    for content in ("", "dim = 5"):
        (tmp_path / "study.toml").write_text(content)
        with pytest.raises(ValueError, match=r"study\.toml is incomplete: it has no name"):
            load_study(tmp_path)
    (tmp_path / "study.toml").write_text("name = 'a'\ndim = 1\nusers = 1\nsecure = false")
    with pytest.raises(ValueError, match="unknown key 'secure'"):
        load_study(tmp_path)


def test_only_its_owner_can_read_what_is_secret(tmp_path):
    study = make(tmp_path / "study")
    for name in (KEY, TOKEN_KEY, "collect.db"):
        assert (tmp_path / "study" / name).stat().st_mode & 0o077 == 0
    assert (tmp_path / "study").stat().st_mode & 0o777 == 0o700
    before = {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    with pytest.raises(ValueError, match="holds a study already"):
        make(tmp_path / "study")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    with opened(tmp_path / "study") as (found, database):
        assert found == study
        assert database.read("SELECT * FROM spent") == []


def test_of_two_at_once_one_creates_the_study(tmp_path):
    def one(_):
        try:
            return make(tmp_path / "study")
        except ValueError as error:
            return str(error)

    *refused, made = sorted(at_once(4, one), key=lambda each: not isinstance(each, str))
    assert all("holds a study already" in reason for reason in refused)
    assert len(invited(tmp_path / "study", made, 1)) == 1  # with the key of this study
    with opened(tmp_path / "study") as (found, _):
        assert found == made


def digits(folder, url=""):
    arrays = {"weights": np.zeros(3920, np.float32)}
    values = {"name": "digits", "users": 12, "rounds": 3, "softmax": True}
    return create_study(folder, arrays, values, url, "digits")


@pytest.mark.parametrize("broken", ["_write_key", "shutil.copytree", "Study.write"])
def test_a_failure_half_way_leaves_nothing_behind(tmp_path, url, monkeypatch, broken):
    """So that the command can be repeated, in the same folder and with the same database."""

    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(f"sqsgd.federation.collect.rounds.{broken}", full)
        with pytest.raises(OSError, match="no space left"):
            digits(tmp_path / "study", url)
    assert list((tmp_path / "study").iterdir()) == []
    study = digits(tmp_path / "study", url)
    with opened(tmp_path / "study") as (found, _):
        assert found == study


def test_other_failures_leave_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="epsilon"):
        make(tmp_path / "wrong", epsilon=-1.0)
    for wrong in (np.array([np.inf], np.float32), np.arange(4)):
        with pytest.raises(ValueError, match=r"finite floats|no array of floats"):
            create_study(tmp_path / "wrong", {"weights": wrong}, VALUES)
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(OSError, match="PostgreSQL"):
        make(tmp_path / "away", "postgresql://nobody@127.0.0.1:1/nothing")
    assert list((tmp_path / "away").iterdir()) == []
    (tmp_path / "own/page").mkdir(parents=True)
    with pytest.raises(ValueError, match="left of one: page"):
        digits(tmp_path / "own")
    assert (tmp_path / "own/page").is_dir()


STUDY = "0123456789abcdef" * 4


@pytest.fixture
def made(tmp_path):
    """A public key, and an invitation that it checks."""
    public = new_keys(tmp_path)["key"]
    (invitation,) = invitations(read_key(tmp_path / KEY, public), STUDY, 1)
    return public, invitation


def test_every_changed_bit_is_refused(made):
    public, invitation = made
    number = invitation_number(invitation, STUDY, public)
    assert (len(number), number) == (32, invitation_number(invitation, STUDY, public))
    token = bytearray(base64.urlsafe_b64decode(invitation + "=" * (-len(invitation) % 4)))
    for bit in range(8 * len(token)):
        token[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="invitation"):
            invitation_number(base64.urlsafe_b64encode(token).decode().rstrip("="), STUDY, public)
        token[bit // 8] ^= 1 << bit % 8


def test_an_invitation_has_one_spelling(made):
    """Two texts of one invitation would admit two devices."""
    public, invitation = made
    other = "B" if invitation[-1] == "A" else "A"
    spellings = (invitation + "=", invitation + "\n", " " + invitation, invitation[:-1] + other)
    for text in (*spellings, None, 5, "", "ä", "A" * 5000, "!!!!", {"a": 1}):
        with pytest.raises(ValueError, match="invitation"):
            invitation_number(text, STUDY, public)


def test_another_study_and_another_operator_are_refused(made, tmp_path):
    public, invitation = made
    private = Ed25519PrivateKey.generate()
    (forged,) = invitations(private, STUDY, 1)
    with pytest.raises(ValueError, match="did not sign"):
        invitation_number(forged, STUDY, public)
    with pytest.raises(ValueError, match="another study"):
        invitation_number(invitation, "f" * 64, public)
    other = private.public_key().public_bytes_raw().hex()
    with pytest.raises(ValueError, match="another study"):
        read_key(tmp_path / KEY, other)
    (tmp_path / KEY).write_text("nonsense")
    with pytest.raises(ValueError, match="holds no signing key"):
        read_key(tmp_path / KEY, other)
