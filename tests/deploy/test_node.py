"""A node's settings are read as Flower reads them, its ledger is created once, and it says what is wrong."""

import contextlib
import json
import re
import shutil
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from nginx_server import running_nginx
from typed import typed

from sqsgd import Ledger
from sqsgd.federation.deploy import certificates
from sqsgd.federation.deploy import node as nodes
from sqsgd.federation.deploy.node import (
    check_ready,
    create_ledger,
    flower_arguments,
    free_port,
    read_node_config,
)
from sqsgd.federation.deploy.training import node_status
from sqsgd.privacy.ledger import LedgerRolledBack


@pytest.fixture
def node(federation):
    return federation / "nodes/node-0"


def add(node, line):
    with (node / "node.conf").open("a") as file:
        file.write(f"{line}\n")


def spend(ledger, round=0):
    ledger.spend(400.0, notion="local", task="digits", round=round, scheme="sqsgd")


def test_settings_reach_flower_as_they_are_read(node):
    parse = pytest.importorskip("flwr.common.config", reason="needs pip install 'sqsgd[flower]'")
    add(node, '  # no=setting\nmodel = "mine:net"\nseed=7 # as of today\n flag=true\nother=\'a = "b"\'')
    found, arguments = read_node_config(node), flower_arguments(node, "127.0.0.1:1")
    assert parse.parse_config_args([arguments[-1]]) == found
    assert found["state-dir"] == str(node / "state")
    assert (found["require-ledger"], found["other"], found["seed"]) == (True, 'a = "b"', 7)


@pytest.mark.parametrize(
    "line",
    ["min-batch: 64", "min-batch 64", "min-batch=64, max-bytes=8", 'name="a b', "seed=7 and more",
     "state-dir=/without/quotes", "seed=7 seed=8", "seed=7\nseed=8", "[limits]\nseed=7", "seed=[7]"],
)  # fmt: skip
def test_no_line_is_skipped(node, line):
    """Flower would skip it, and a limit would be left out."""
    add(node, line)
    with pytest.raises(ValueError, match=r"node\.conf(:| is not valid TOML)"):
        read_node_config(node)


def test_a_ledger_elsewhere_is_created_once(node, tmp_path):
    with pytest.raises(ValueError, match="exists: nothing was created"):
        create_ledger(node)
    add(node, f'state-dir="{tmp_path}/disk/state"\nwitness="{tmp_path}/tip"')
    made = create_ledger(node)
    assert (made.path, made.witness) == (tmp_path / "disk/state/ledger", tmp_path / "tip")
    assert made.max_epsilon == 1600.0
    with pytest.raises(ValueError, match="exists and has its witness: nothing was created"):
        create_ledger(node)
    spend(made)
    shutil.rmtree(tmp_path / "disk")
    with pytest.raises(LedgerRolledBack, match="records 2 lines"):  # a lost ledger is not created again
        create_ledger(node)


def test_a_witness_is_added_to_a_ledger_in_use(node, tmp_path):
    ledger, tip = Ledger(node / "state/ledger"), tmp_path / "tip"
    spend(ledger)
    add(node, f'witness="{tip}"')
    assert create_ledger(node).witness == tip
    assert tip.stat().st_mode & 0o077 == 0
    tip.unlink()
    (node / "state/ledger.tip").unlink()
    with pytest.raises(ValueError, match="is missing"):  # a damaged ledger gets no witness
        create_ledger(node)
    assert not tip.exists()


def test_its_budget_is_topped_up(node):
    """In one command, which changes the ledger and node.conf; the server's requests cannot."""
    before = (node / "node.conf").read_text()
    done = typed(["sqsgd", "ledger", "top-up", node, "400", "--json"])
    assert json.loads(done.out)["max_epsilon"] == 2000.0
    assert (node / "node.conf").read_text() == before.replace("max-epsilon=1600.0", "max-epsilon=2000.0")
    assert "start the node again" in typed(["sqsgd", "ledger", "top-up", node, "1"]).out
    assert Ledger(node / "state/ledger").max_epsilon == read_node_config(node)["max-epsilon"] == 2001.0
    spend(Ledger(node / "state/ledger"))
    assert node_status(node)["epsilon_left"] == 1601.0
    (node / "node.conf").write_text(before.replace("max-epsilon=1600.0", "max-epsilon=900"))
    assert (node_status(node)["epsilon_left"], node_status(node)["epsilon_cap"]) == (500.0, 900)
    done = typed(["sqsgd", "ledger", "top-up", node, "1"])
    assert (done.code, "was lowered below the ledger's cap, 2001" in done.error) == (2, True)
    done = typed(["sqsgd", "ledger", "top-up", node / "state/ledger", "0"])
    assert (done.code, "epsilon = 0.0" in done.error) == (2, True)
    assert Ledger(node / "state/ledger").max_epsilon == 2001.0


def spoiled(name, text=None):
    return lambda node: (node / name).unlink() if text is None else (node / name).write_text(text)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoiled("node.conf"), "has no node.conf"),
        (lambda node: add(node, "seed: 7"), "is not valid TOML"),
        (lambda node: add(node, "min_batch=64"), "min_batch is unknown; did you mean min-batch?"),
        (lambda node: add(node, 'witness="tip"'), "witness = 'tip' must be an absolute path"),
        (spoiled("key"), "ca.pem, key or key.pub is missing or damaged"),
        (spoiled("ca.pem", "no certificate"), "ca.pem, key or key.pub is missing or damaged"),
        (spoiled("key.pub", "no key"), "ca.pem, key or key.pub is missing or damaged"),
    ],
)
def test_what_is_wrong_with_its_own_files_is_said_before_it_starts(node, spoil, words):
    with pytest.raises(OSError):  # noqa: PT011 - the server is away
        check_ready(node, f"127.0.0.1:{free_port()}")
    for address in ("server.example.org", "127.0.0.1:abc", ":8000", "127.0.0.1:99999"):
        with pytest.raises(ValueError, match=f"address, '{address}', must look like server.example.org:8000"):
            check_ready(node, address)
    spoil(node)
    with pytest.raises(ValueError, match=re.escape(words)):
        check_ready(node, "127.0.0.1:1")


def test_clocks_keys_and_certificates_are_checked_at_the_server(federation, monkeypatch):
    node, key = federation / "nodes/node-0", (federation / "authority/ca.key").read_bytes()
    with running_nginx(federation / "server") as (address, reload):
        for ahead, words in ((0, ""), (-100, ""), (100, "ahead of .* 5 s are"), (-1000, "behind .* 305 s")):
            clock = SimpleNamespace(time=lambda ahead=ahead: time.time() + ahead)
            monkeypatch.setattr(nodes, "time", clock)
            with pytest.raises(ValueError, match=words) if words else contextlib.nullcontext():
                check_ready(node, address)
        monkeypatch.undo()
        (node / "key.pub").write_bytes(certificates.make_node_pair("stranger").public)
        with pytest.raises(ValueError, match=r"does not know .*/key\.pub, or its operator has revoked it"):
            check_ready(node, address)
        monkeypatch.setattr(certificates, "_CLOCK_SKEW", timedelta(days=3))
        server = federation / "server/server.pem"
        server.write_bytes(certificates.renewed(key, server.read_bytes(), -1))
        reload()
        with pytest.raises(ValueError, match="certificate has expired"):
            check_ready(node, address)
    ca = (node / "ca.pem").read_bytes()
    (node / "ca.pem").write_bytes(certificates.renewed(key, ca, -1))
    with pytest.raises(ValueError, match=r"ca\.pem expired on"):
        check_ready(node, "127.0.0.1:1")


def test_the_limits_are_flowers():
    constants = pytest.importorskip("flwr.common.constant", reason="needs pip install 'sqsgd[flower]'")
    assert constants.SYSTEM_TIME_TOLERANCE == nodes.AHEAD
    assert constants.TIMESTAMP_TOLERANCE + constants.SYSTEM_TIME_TOLERANCE == nodes.BEHIND
