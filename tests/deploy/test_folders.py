"""The folder of a federation: its file, who may read what, how it is changed; and its certificates."""

import base64
import dataclasses
import math
import os
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509
from small_federation import SMALL

from sqsgd import Ledger
from sqsgd.federation.deploy import folders
from sqsgd.federation.deploy.certificates import (
    expiry,
    general_name,
    make_authority,
    make_node_pair,
    make_server_pair,
    pem_of_openssh,
)
from sqsgd.federation.deploy.federation import Federation, load_federation
from sqsgd.federation.deploy.folders import add_node, renew, revoke, write_federation
from sqsgd.federation.deploy.node import read_node_config
from sqsgd.federation.deploy.templates import node_settings
from sqsgd.federation.node.policy import Policy


def everything(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def known(server):
    """The keys that nginx lets through."""
    return {line.split('"')[1] for line in (server / "nodes.map").read_text().splitlines()}


def sent(public):
    return base64.b64encode(pem_of_openssh(public)).decode()


def test_what_is_written(made):
    assert load_federation(made) == load_federation(made / "server")
    assert (load_federation(made).nodes, load_federation(made).rounds) == (2, 4)
    for script in [*made.glob("server/*.sh"), *made.glob("nodes/*/run.sh"), *made.glob("nodes/*/bin/*")]:
        assert os.access(script, os.X_OK), script
        subprocess.run(["/bin/sh", "-n", script], check=True)
    keys = [(made / f"nodes/node-{index}/key.pub").read_bytes() for index in (0, 1)]
    assert keys == [(made / f"server/nodes/node-{index}.pub").read_bytes() for index in (0, 1)]
    assert known(made / "server") == {sent(key) for key in keys}
    settings = read_node_config(made / "nodes/node-1")
    wanted = {
        "max-epsilon": 1600.0, "max-epsilon-per-report": 400.0, "max-bytes": 256, "min-batch": 32,
        "require-ledger": True, "partition-id": 1, "num-partitions": 2,
    }  # fmt: skip
    assert {key: settings[key] for key in wanted} == wanted
    names = [line.partition(":")[0] for line in (made / "Procfile").read_text().splitlines()]
    assert names == ["superlink", "superexec", "nginx", "node-0", "node-1", "train"]


def test_services_start_the_scripts_and_start_them_again(made):
    for folder, scripts in (
        (made / "server", ["superlink", "superexec", "nginx"]),
        (made / "nodes/node-1", ["run"]),
    ):
        units = sorted(path.read_text() for path in folder.glob("sqsgd-*.service"))
        assert len(units) == len(scripts)
        for unit, script in zip(units, sorted(scripts), strict=True):
            assert f"\nExecStart=/srv/sqsgd/{folder.name}/{script}.sh\n" in unit
            assert "\nRestart=always\n" in unit
        services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
        assert list(services) == scripts
        for name, service in services.items():
            assert service["command"] == [f"/federation/{name}.sh"]
            assert service["restart"] == "unless-stopped"
            assert service["logging"]["options"]["max-size"]
    port = load_federation(made).port
    link = yaml.safe_load((made / "server/compose.yaml").read_text())["services"]["superlink"]
    assert link["ports"] == [f"{port}:{port}"]


def test_every_secret_is_its_owners_alone(made):
    parts = [made / "authority", made / "server", made / "nodes/node-0", made / "nodes/node-1"]
    secrets = [
        [path for path in part.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
        for part in parts
    ]
    names = [[path.name for path in paths] for paths in secrets]
    assert names == [["ca.key"], ["server.key"], ["key"], ["key"]]
    assert len({path.read_bytes() for (path,) in secrets}) == 4
    for path in [*(path for (path,) in secrets), made / "server/superexec.secret"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (made, *parts):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_every_node_has_the_ledger_that_it_requires(made):
    for index in (0, 1):
        node = made / f"nodes/node-{index}"
        policy = Policy.of(read_node_config(node), simulation=False)
        assert (policy.require_ledger, policy.state_dir, policy.witness) == (True, node / "state", None)
        ledger = Ledger(node / "state/ledger")
        assert (ledger.max_epsilon, ledger.spent) == (policy.max_epsilon, 0)


@pytest.mark.parametrize("step", ["_fill_node", "create_ledger"])
def test_nothing_is_overwritten(made, tmp_path, monkeypatch, step):
    before = everything(made)
    with pytest.raises(ValueError, match="exists and is not empty"):
        write_federation(made, Federation(), 30)
    assert everything(made) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        write_federation(tmp_path / "file", Federation(), 30)

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(folders, step, fails)
    with pytest.raises(OSError, match="full"):
        write_federation(tmp_path / "new", Federation(), 30)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_node_is_added(federation):
    before = everything(federation)
    node = add_node(federation)
    assert node == federation / "nodes/node-2"
    assert load_federation(federation).nodes == 3
    assert sent((node / "key.pub").read_bytes()) in known(federation / "server")
    assert Ledger(node / "state/ledger").spent == 0
    settings = read_node_config(node)
    assert (settings["partition-id"], settings["num-partitions"]) == (2, 3)
    assert "node-2: " in (federation / "Procfile").read_text()
    changed = {
        str(path) for path, content in everything(federation).items() if before.get(path, content) != content
    }
    assert changed == {"Procfile", "federation.toml", "server/federation.toml", "server/nodes.map"}


@pytest.mark.parametrize("of", ["federation", "server"])
def test_a_node_is_revoked(federation, of):
    server = federation / "server"
    gone, stays = (sent((federation / f"nodes/node-{index}/key.pub").read_bytes()) for index in (1, 0))
    (server / "nodes/odd.pub").write_text("no key")
    key, reloaded = revoke(server if of == "server" else federation, "node-1")
    assert (key, reloaded) == (server / "revoked/node-1.pub", False)  # no nginx runs
    assert known(server) == {stays} != {gone}
    (server / "nodes/odd.pub").unlink()
    for wrong in ("node-1", "../ca", "node-7"):
        with pytest.raises(ValueError, match="it has: node-0"):
            revoke(federation, wrong)
    assert add_node(federation).name == "node-2"  # the number of a revoked node is not used again


def test_a_certificate_is_renewed_with_the_same_key(federation):
    server, days = federation / "server", timedelta(days=900)
    old = x509.load_pem_x509_certificate((server / "server.pem").read_bytes())
    with pytest.raises(ValueError, match="before the server's: give fewer --days"):
        renew(federation, 3651)
    assert x509.load_pem_x509_certificate((server / "server.pem").read_bytes()) == old
    assert renew(federation, 900) == server / "server.pem"
    new = x509.load_pem_x509_certificate((server / "server.pem").read_bytes())
    assert abs(expiry(server / "server.pem") - datetime.now(UTC) - days) < timedelta(minutes=5)
    assert (new.public_key(), list(new.extensions)) == (old.public_key(), list(old.extensions))
    new.verify_directly_issued_by(x509.load_pem_x509_certificate((server / "ca.pem").read_bytes()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    (federation / "authority/ca.key").unlink()
    with pytest.raises(ValueError, match=r"ca\.key is missing: name the folder"):
        renew(federation, 30)


# ---------------------------------------------------------------- certificates


def test_it_holds_for_its_hosts_until_it_ends_and_certifies_nothing_further(tmp_path):
    """TLS with it: tests/deploy/test_nginx.py, and test_node.py for certificates that are not accepted."""
    pair = make_authority(30)
    (tmp_path / "server.pem").write_bytes(make_server_pair(pair.private, ("a.example", "::1"), 30).public)
    ends = datetime.now(UTC) + timedelta(days=30)
    assert abs(expiry(tmp_path / "server.pem") - ends) < timedelta(minutes=5)
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate(pair.public)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["a.example", "::1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    server.verify_directly_issued_by(authority)
    with pytest.raises(ValueError):  # noqa: PT011 - cryptography's message
        make_server_pair(make_node_pair("node-0").public, ("127.0.0.1",), 1)


@pytest.mark.parametrize(
    "host", ["", "a b", "-a", "a-", "a..b", "exa_mple", "1.2.3.4.5", "300.1.1.1", "é.org", "a" * 64, "*"]
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(ValueError, match="must be a name such as"):
        general_name(host)


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
