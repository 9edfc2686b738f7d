"""The folder of a federation: what is in it, who may read it, and that nothing is written over."""

import os
import stat
import subprocess

import pytest
from sqsgd.deploy.node import read_node_config

from sqsgd import Ledger
from sqsgd.deploy import folders
from sqsgd.deploy.federation import Federation, load_federation
from sqsgd.deploy.folders import write_federation
from sqsgd.node.policy import Policy


def everything(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_what_is_written(made):
    assert load_federation(made) == load_federation(made / "server") == Federation(nodes=2, rounds=4)
    for script in [*made.glob("server/*.sh"), *made.glob("nodes/*/run.sh"), *made.glob("nodes/*/bin/*")]:
        if script.name != "environment.sh":
            assert os.access(script, os.X_OK), script
        subprocess.run(["/bin/sh", "-n", script], check=True)
    keys = [(made / f"nodes/node-{index}/key.pub").read_bytes() for index in (0, 1)]
    assert keys == [(made / f"server/nodes/node-{index}.pub").read_bytes() for index in (0, 1)]
    assert keys[0] != keys[1]
    settings = (made / "nodes/node-1/node.conf").read_text()
    for line in (
        "max-epsilon=1600.0",
        "max-epsilon-per-report=400.0",
        "max-bytes=256",
        "min-batch=32",
        "partition-id=1",
        "num-partitions=2",
    ):
        assert f"\n{line}\n" in settings


def test_secrets_are_their_owners_alone(made):
    secret = [
        path for path in made.rglob("*") if b"PRIVATE KEY" in (path.read_bytes() if path.is_file() else b"")
    ]
    assert {path.name for path in secret} == {"ca.key", "server.key", "key"}
    for path in [*secret, made / "server/superexec.secret"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (made, made / "authority", made / "server", made / "nodes/node-0"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_no_folder_holds_anothers_secret(made):
    def secrets(folder):
        return {content for content in everything(folder).values() if b"PRIVATE KEY" in content}

    parts = [made / "authority", made / "server", made / "nodes/node-0", made / "nodes/node-1"]
    found = [secrets(part) for part in parts]
    assert [len(each) for each in found] == [1, 1, 1, 1]
    assert len(set.union(*found)) == 4


def test_nothing_is_written_over(made, tmp_path, monkeypatch):
    before = everything(made)
    with pytest.raises(ValueError, match="exists and is not empty"):
        write_federation(made, Federation(), 30)
    assert everything(made) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        write_federation(tmp_path / "file", Federation(), 30)

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(folders, "fill_node", fails)
    with pytest.raises(OSError, match="full"):
        write_federation(tmp_path / "new", Federation(), 30)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_node_has_the_ledger_that_it_requires(made):
    for index in (0, 1):
        node = made / f"nodes/node-{index}"
        policy = Policy.of(read_node_config(node), simulation=False)
        assert (policy.require_ledger, policy.state_dir, policy.witness) == (True, node / "state", None)
        ledger = Ledger(node / "state/ledger")
        assert (ledger.max_epsilon, ledger.spent) == (policy.max_epsilon, 0)
        assert f'"path":"{node}/state/ledger"' in ledger.path.read_text().replace(" ", "")


def test_where_a_ledger_cannot_be_created_nothing_is_left(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(folders, "create_ledger", fails)
    with pytest.raises(OSError, match="full"):
        write_federation(tmp_path / "new", Federation(), 30)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    assert write_federation(tmp_path / "empty", Federation(nodes=1), 30).exists()
