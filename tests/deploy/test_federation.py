"""What a federation may be, and its file."""

import dataclasses
import math

import pytest
from small_federation import SMALL

from sqsgd import Ledger
from sqsgd.federation.deploy.federation import Federation, load_federation
from sqsgd.federation.deploy.templates import node_settings


def test_a_federations_file_is_checked(made, tmp_path):
    for change, words in [
        ("nodes = 0", "nodes = 0"),
        ('nodes = "two"', "nodes = 'two' must be of type int"),
        ("colour = 1", "unknown key 'colour'"),
        ("nodes =", "not valid TOML"),
    ]:
        text = [line for line in (made / "federation.toml").read_text().splitlines() if "nodes" not in line]
        (tmp_path / "federation.toml").write_text("\n".join([*text, change]))
        with pytest.raises(ValueError, match=words):
            load_federation(tmp_path)
    with pytest.raises(ValueError, match="sqsgd deploy init"):
        load_federation(tmp_path / "nowhere")


def test_a_federation_survives_its_file(tmp_path):
    changed = Federation(
        hosts=("server.example.org", "2001:db8::1"), port=8000, link_port=8001, nodes=7, rounds=3,
        scheme="vqsgd", epsilon=8.0, bytes=99, max_epsilon=20.5, dataset="mine:data", model="mine:net",
        lr=0.25, seed=2**62, min_nodes=2, min_answers=3, round_timeout=9.5, wait_timeout=1.0,
        evaluate_every=2, unit="record", delta=1e-6, records=9, stop_at_epsilon=7.5, evaluation_epsilon=0.5,
        evaluation_records=8,
    )  # fmt: skip
    assert all(
        getattr(changed, field.name) != field.default for field in dataclasses.fields(Federation)
    )  # a key that is not written would come back as its default
    (tmp_path / "federation.toml").write_text(changed.to_toml())
    assert load_federation(tmp_path) == changed


def test_the_cap_admits_every_round(tmp_path):
    """20 * 1.1 rounds to 22.0, below the exact sum of the twenty costs: the last would be refused."""
    federation = Federation(epsilon=1.1, rounds=20)
    settings = node_settings(federation, 0).split("max-epsilon=")[1].split("\n")[0]
    ledger = Ledger.create(tmp_path / "ledger", max_epsilon=float(settings))
    for round in range(federation.rounds):
        ledger.spend(federation.epsilon, notion="local", task="digits", round=round, scheme="sqsgd")
    assert ledger.left < 1.1
    assert dataclasses.replace(SMALL, max_epsilon=500.0).cap == 500.0
    for wrong in (399.0, math.nan, -1.0):
        with pytest.raises(ValueError, match="max_epsilon"):
            dataclasses.replace(SMALL, max_epsilon=wrong)
