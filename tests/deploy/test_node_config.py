"""A node's settings are read as Flower reads them, and its ledger is created once, where they say."""

import shutil

import pytest
from sqsgd.deploy.node import create_ledger, read_node_config

from sqsgd import Ledger
from sqsgd.privacy.ledger import LedgerRolledBack


@pytest.fixture
def node(federation):
    return federation / "nodes/node-0"


def add(node, line):
    with (node / "node.conf").open("a") as file:
        file.write(f"{line}\n")


def spend(ledger, round=0):
    ledger.spend(400.0, notion="local", task="digits", round=round, scheme="sqsgd")


def test_settings_are_read_as_flower_reads_them(node):
    parse = pytest.importorskip("flwr.common.config", reason="needs pip install 'sqsgd[flower]'")
    add(node, "  # no=setting\nmodel=\"mine:net\" seed=7\n flag=true other='a b'")
    found = read_node_config(node)
    text = " ".join(
        line for line in (node / "node.conf").read_text().splitlines() if not line.strip().startswith("#")
    )
    assert {key: found[key] for key in found if key != "state-dir"} == parse.parse_config_args([text])
    assert found["state-dir"] == str(node / "state")
    assert (found["require-ledger"], found["other"], found["seed"]) == (True, "a b", 7)


def test_what_cannot_be_read_is_named(node):
    with pytest.raises(ValueError, match=r"has no node\.conf; name a node's folder"):
        read_node_config(node.parent)
    add(node, "state-dir=/without/quotes")
    with pytest.raises(
        ValueError, match=r"node\.conf: line \d+: the value of state-dir, /without/quotes, must"
    ):
        read_node_config(node)


@pytest.mark.parametrize(
    "line",
    ["min-batch = 64", "min-batch =64", "min-batch= 64", "min-batch: 64", "min-batch 64",
     "seed=7 # min-batch=64", "min-batch=64, max-bytes=8", 'name="a b', "seed=7 and more"],
)  # fmt: skip
def test_no_line_is_skipped(node, line):
    """Flower would read it in another way than it looks, and a limit would be left out."""
    text = (node / "node.conf").read_text()
    at = len(text.splitlines()) + 1
    add(node, line)
    with pytest.raises(ValueError, match=rf"node\.conf: line {at}\b"):
        read_node_config(node)
    (node / "node.conf").write_text(f"{text}\n  seed=7\tname='a = b' # as of today\n\n")
    assert read_node_config(node)["name"] == "a = b"


def test_a_setting_counts_once(node):
    add(node, "min-batch=1")
    with pytest.raises(ValueError, match="min-batch is set twice"):
        read_node_config(node)


def test_a_ledger_elsewhere_is_created_once(node, tmp_path):
    add(node, f'state-dir="{tmp_path}/disk/state" witness="{tmp_path}/tip"')
    made = create_ledger(node)
    assert (made.path, made.witness) == (tmp_path / "disk/state/ledger", tmp_path / "tip")
    assert made.max_epsilon == 1600.0
    with pytest.raises(ValueError, match="exists and has its witness: nothing was created"):
        create_ledger(node)


def test_a_lost_ledger_is_not_created_again(node, tmp_path):
    with pytest.raises(ValueError, match="exists: nothing was created"):
        create_ledger(node)
    add(node, f'witness="{tmp_path}/tip"')
    spend(create_ledger(node))
    shutil.rmtree(node / "state")
    with pytest.raises(LedgerRolledBack, match="records 2 lines"):
        create_ledger(node)


def test_a_witness_is_added_to_a_ledger_in_use(node, tmp_path):
    ledger, tip = Ledger(node / "state/ledger"), tmp_path / "tip"
    spend(ledger)
    add(node, f'witness="{tip}"')
    assert create_ledger(node).witness == tip
    assert tip.stat().st_mode & 0o077 == 0
    shutil.copytree(node / "state", tmp_path / "older")
    for round in (1, 2):
        spend(Ledger(ledger.path, witness=tip), round)
    shutil.rmtree(node / "state")
    shutil.move(tmp_path / "older", node / "state")
    assert Ledger(ledger.path).spent == 400  # without the witness nobody can tell
    with pytest.raises(LedgerRolledBack, match="older copy was restored"):
        Ledger(ledger.path, witness=tip)
    with pytest.raises(ValueError, match="nothing was created"):
        create_ledger(node)


def test_a_damaged_ledger_gets_no_witness(node, tmp_path):
    add(node, f'witness="{tmp_path}/tip"')
    (node / "state/ledger.tip").unlink()
    with pytest.raises(ValueError, match="is missing"):
        create_ledger(node)
    assert not (tmp_path / "tip").exists()
