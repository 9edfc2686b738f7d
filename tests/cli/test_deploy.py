"""`sqsgd deploy`: arguments are checked before anything is written or run."""

import json
import shutil

import pytest
from small_federation import small_federation
from typed import typed
from typer.testing import CliRunner

from sqsgd.cli import app
from sqsgd.cli import deploy as deploying


def test_init_prints_json(tmp_path):
    where = ["--host", "server.example.org", "--host", "192.0.2.7"]
    done = CliRunner().invoke(
        app, ["deploy", "init", str(tmp_path / "new"), *where, "--nodes", "1", "--json"]
    )
    found = json.loads(done.stdout)
    assert found["port"] == 8000
    assert found["hosts"] == ["server.example.org", "192.0.2.7", "127.0.0.1", "localhost"]
    assert (
        'server=${SQSGD_SERVER:-"server.example.org:8000"}'
        in (tmp_path / "new/nodes/node-0/run.sh").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "0"], "nodes = 0"),
        (["--host", "no host"], "host = 'no host'"),
        (["--port", "70000"], "port = 70000"),
        (["--scheme", "sqsdg"], "did you mean 'sqsgd'"),
        (["--epsilon", "nan"], "epsilon = nan"),
        (["--bytes", "0"], "bytes = 0"),
        (["--rounds", "0"], "rounds = 0"),
        (["--max-epsilon", "3"], "no node could answer a single round"),
        (["--min-answers", "4"], "min_answers = 4"),
        (["--downlink", "half"], "downlink = 'half'"),
        (["--days", "0"], "days = 0"),
        (["--model", "a b"], "model = 'a b'"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(tmp_path, arguments, words):
    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "new"), *arguments])
    assert isinstance(done.exception, ValueError)  # the command line prints it as one line
    assert words in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, of pathspec
def test_a_node_may_run_what_its_owner_allows(tmp_path):
    pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
    from sqsgd.flower import app_folder
    from sqsgd.flower.guard import app_hash

    (node := tmp_path / "node-0").mkdir()
    (mine := tmp_path / "my_app").mkdir()
    (node / "allowed-apps").write_text("first  # sqsgd\n")
    done = typed(["sqsgd", "deploy", "allow", node, mine])
    assert (done.code, done.error) == (2, f"sqsgd: {mine} is not a Flower app: it has no pyproject.toml\n")
    shutil.copytree(app_folder(), mine, dirs_exist_ok=True)
    found = json.loads(typed(["sqsgd", "deploy", "allow", node, mine, "--json"]).out)
    assert found["sha256"] == app_hash(mine)
    assert (node / "allowed-apps").read_text() == f"first  # sqsgd\n{found['sha256']}  # my_app\n"


@pytest.mark.parametrize("address", ["8000", ":8000", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "a:-1"])
def test_a_gate_needs_a_host_and_a_port(tmp_path, address):
    done = typed(["sqsgd", "deploy", "gate", tmp_path, "--listen", "127.0.0.1:1", "--to", address])
    assert (done.code, done.error) == (2, f"sqsgd: to = {address!r} must look like 127.0.0.1:8001\n")


def test_the_wrong_folder_is_named_and_nothing_is_written(tmp_path):
    folder = small_federation(tmp_path)
    before = sorted(folder.rglob("*"))
    done = typed(["sqsgd", "deploy", "up", folder / "server"])
    assert (done.code, "server has no server/ with the scripts of a server" in done.error) == (2, True)
    node = folder / "nodes/node-0"
    done = typed(["sqsgd", "deploy", "gate", node, "--listen", "127.0.0.1:1", "--to", "127.0.0.1:2"])
    assert (done.code, f"{node} has no server.pem: name the server's folder" in done.error) == (2, True)
    done = typed(["sqsgd", "deploy", "renew", folder / "server"])
    assert (done.code, "name the folder that `sqsgd deploy init` wrote" in done.error) == (2, True)
    assert sorted(folder.rglob("*")) == before


def test_an_ipv6_address_may_be_in_brackets():
    assert deploying._address("to", "[::1]:8001") == ("::1", 8001)


def test_down_of_a_federation_that_is_not_up(tmp_path):
    folder = small_federation(tmp_path)
    done = typed(["sqsgd", "deploy", "down", folder])
    assert (done.code, done.out) == (0, f"{folder} was not up\n")


def test_a_node_creates_its_ledger_where_its_settings_say(tmp_path):
    node = small_federation(tmp_path) / "nodes/node-0"
    done = typed(["sqsgd", "deploy", "ledger", node])
    assert (done.code, done.error) == (2, f"sqsgd: {node}/state/ledger exists: nothing was created\n")
    (node / "node.conf").write_text(f'max-epsilon=5.0 state-dir="{tmp_path}/a" witness="{tmp_path}/tip"\n')
    found = json.loads(typed(["sqsgd", "deploy", "ledger", node, "--json"]).out)
    assert found == {"node": str(node), "ledger": f"{tmp_path}/a/ledger", "witness": f"{tmp_path}/tip"}
    (node / "node.conf").write_text(f'max-epsilon=5.0 state-dir="{tmp_path}/b"\n')
    done = typed(["sqsgd", "deploy", "ledger", node])
    assert done.out == f"{tmp_path}/b/ledger: cap 5, 0 spent\nwitness     none: see witness in node.conf\n"
