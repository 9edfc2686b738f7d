"""Nodes come and go, and certificates are renewed, while the gate and the other nodes stay up."""

import base64
import time

import pytest
from live import wait_until
from open_gate import ask, open_gate
from sqsgd.deploy.node import problems
from sqsgd.deploy.training import node_status

from sqsgd.deploy.certificates import expiry, pem_of_openssh
from sqsgd.deploy.federation import load_federation
from sqsgd.deploy.folders import add_node, renew, revoke
from sqsgd.deploy.preflight import KEY_HEADER


def listening(address, trusted):
    def answered():
        try:
            return ask(address, trusted)
        except ConnectionRefusedError:
            return None

    return wait_until(answered, 60, "the gate listens")


def test_a_new_node_has_all_that_the_others_have(federation):
    before = {path: path.read_bytes() for path in federation.rglob("*") if path.is_file()}
    node = add_node(federation)
    assert node.name == "node-2"
    names = [
        {str(path.relative_to(each)) for path in each.rglob("*")} for each in (node, node.parent / "node-0")
    ]
    assert names[0] == names[1]
    assert (federation / "server/nodes/node-2.pub").read_bytes() == (node / "key.pub").read_bytes()
    assert (node / "key").stat().st_mode & 0o077 == 0
    assert (node_status(node)["ledger"], node_status(node)["epsilon_left"]) == ("good", 1600.0)
    assert [load_federation(each).nodes for each in (federation, federation / "server")] == [3, 3]
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"federation.toml"}
    revoke(federation, "node-2")
    assert add_node(federation).name == "node-3"  # the name of a revoked node is not used again


def test_a_node_that_is_not_there_cannot_be_revoked(federation):
    for name in ("node-9", "../nodes/node-0"):
        with pytest.raises(ValueError, match="it has: node-0, node-1"):
            revoke(federation / "server", name)


def test_a_revoked_key_is_refused_by_a_gate_that_runs(federation):
    nodes = [federation / f"nodes/node-{index}" for index in range(2)]
    keys = [base64.b64encode(pem_of_openssh((node / "key.pub").read_bytes())).decode() for node in nodes]
    trusted = federation / "server/ca.pem"
    with open_gate(federation / "server") as address:
        listening(address, trusted)
        assert [list(problems(node, address)) for node in nodes] == [[], []]
        revoke(federation / "server", "node-1")
        refused = lambda: ask(address, trusted, headers=[(KEY_HEADER, keys[1])])[0] == 401  # noqa: E731
        wait_until(refused, 60, "the key is refused")
        assert ask(address, trusted, headers=[(KEY_HEADER, keys[0])])[0] == 503  # there is no SuperLink
        for forged in ([keys[0], keys[1]], [keys[1], keys[0]], ["!"], []):
            assert ask(address, trusted, headers=[(KEY_HEADER, key) for key in forged])[0] in (400, 401, 403)
        assert list(problems(nodes[0], address)) == []
        (said,) = problems(nodes[1], address)
        assert "has revoked this node's key" in said


def test_a_key_is_revoked_even_if_too_few_are_left(federation):
    """A key that was stolen must not stay valid because of a setting of the next training."""
    assert revoke(federation, "node-0").note == ""
    last = revoke(federation, "node-1")
    assert "correct it before the next training (nodes = 0 must be a whole number" in last.note
    assert sorted(path.name for path in (federation / "server/revoked").iterdir()) == [
        "node-0.pub",
        "node-1.pub",
    ]
    assert load_federation(federation).nodes == 1


def test_a_file_that_is_no_key_does_not_hide_revoked_ones(federation, capsys):
    server, trusted = federation / "server", federation / "server/ca.pem"
    key = base64.b64encode(pem_of_openssh((federation / "nodes/node-1/key.pub").read_bytes())).decode()
    (server / "nodes/mine.pub").write_text("no key")
    with open_gate(server) as address:
        listening(address, trusted)
        (server / "revoked").mkdir()
        (server / "revoked/another.pub").write_text("")
        revoke(server, "node-1")
        refused = lambda: ask(address, trusted, headers=[(KEY_HEADER, key)])[0] == 401  # noqa: E731
        wait_until(refused, 60, "the key is refused")
        time.sleep(2.5)
    said = capsys.readouterr().out
    assert said.count("mine.pub is not a node's public key, and is left out") == 1
    assert said.count("another.pub is not a node's public key") == 1


def test_certificates_are_renewed_while_the_gate_and_nodes_are_up(federation, tmp_path):
    """A node that is up trusts the authority's certificate as it was when the node started."""
    old, key = tmp_path / "old.pem", (federation / "server/server.key").read_bytes()
    old.write_bytes((federation / "nodes/node-0/ca.pem").read_bytes())
    with open_gate(federation / "server") as address:
        first = listening(address, old)[1]
        time.sleep(1.1)  # certificates have whole seconds
        done = renew(federation, 400, authority=True)
        another = lambda: ask(address, old)[1]["serialNumber"] != first["serialNumber"]  # noqa: E731
        wait_until(another, 60, "the new certificate is shown to a node that is up")
        shown = ask(address, federation / "nodes/node-0/ca.pem")[1]  # and to one that starts now
        assert shown["subjectAltName"] == first["subjectAltName"]
    assert len(done.authority) == 4
    assert len({expiry(path) for path in done.authority}) == 1
    assert expiry(done.authority[0]) > expiry(old)
    assert (federation / "server/server.key").read_bytes() == key


def test_a_certificate_does_not_outlive_its_authority(federation):
    before = (federation / "server/server.pem").read_bytes()
    with pytest.raises(ValueError, match="renew it too, with --authority"):
        renew(federation, 4000, authority=False)
    assert (federation / "server/server.pem").read_bytes() == before
    ended = expiry(federation / "server/server.pem")
    renew(federation, 825, authority=False)  # as the command does by default, right after init
    assert expiry(federation / "server/server.pem") > ended
    (federation / "authority/ca.key").unlink()
    with pytest.raises(ValueError, match=r"ca.key is missing"):
        renew(federation, 10, authority=False)
