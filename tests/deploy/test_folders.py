"""The folder of a federation: what is in it, who may read it, and that nothing is written over."""

import json
import os
import shutil
import stat
import subprocess

import pytest
from typer.testing import CliRunner

from sqsgd.cli import app
from sqsgd.deploy import folders, scripts
from sqsgd.deploy.federation import Federation, load_federation
from sqsgd.deploy.folders import write_federation


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_federation(tmp_path_factory.mktemp("made") / "federation", Federation(nodes=2, rounds=4), 30)


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
    for line in ("max-epsilon=1600.0", "max-report-epsilon=400.0", "partition-id=1", "num-partitions=2"):
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

    monkeypatch.setattr(folders, "_fill_node", fails)
    with pytest.raises(OSError, match="full"):
        write_federation(tmp_path / "new", Federation(), 30)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    assert write_federation(tmp_path / "empty", Federation(nodes=1), 30).exists()


def test_a_nodes_script_finds_its_own_folder_after_a_copy(made, tmp_path):
    """What Flower would be started with, on a machine where the folder lies elsewhere."""
    place = tmp_path / "an other place"
    place.mkdir()
    shutil.copytree(made / "nodes/node-0", place / "node-0")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "flower-supernode").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" "$FLWR_HOME" "$(command -v flwr-clientapp)"\n'
    )
    (tools / "flower-supernode").chmod(0o700)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    node = place / "node-0"
    refused = subprocess.run([node / "run.sh"], env=environment, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "say where the server is" in refused.stderr
    environment |= {"SQSGD_SERVER": "192.0.2.7:8000"}
    said = subprocess.run([node / "run.sh"], env=environment, capture_output=True, text=True, check=True)
    words = said.stdout.splitlines()
    assert words[words.index("--superlink") + 1] == "192.0.2.7:8000"
    assert words[words.index("--root-certificates") + 1] == str(node / "ca.pem")
    settings = words[words.index("--node-config") + 1]
    assert settings.startswith(f'state-dir="{node}/state" max-epsilon=1600.0 ')
    assert words[-2:] == [str(node / "flwr"), str(node / "bin/flwr-clientapp")]
    (node / "node.conf").write_text('# mine\nstate-dir="/srv/ledgers"\nmax-epsilon=5.0\n')
    said = subprocess.run([node / "run.sh"], env=environment, capture_output=True, text=True, check=True)
    assert 'state-dir="/srv/ledgers" max-epsilon=5.0 ' in said.stdout.splitlines()


def test_a_node_starts_no_other_kind_of_code(made):
    """Flower knows more kinds than client apps, and starts each by its name."""
    for name in ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation"):
        done = subprocess.run(
            [made / "nodes/node-0/bin" / name, "--token", "x"], capture_output=True, text=True
        )
        assert done.returncode == 1
        assert "runs client apps alone" in done.stderr


def test_flowers_names_of_code_are_all_known():
    constants = pytest.importorskip("flwr.supercore.constant", reason="needs pip install 'sqsgd[flower]'")
    known = {"flwr-clientapp", *scripts.REFUSED_COMMANDS}
    assert set(constants.TASK_TYPE_TO_COMMAND.values()) <= known


def test_init_for_machines(tmp_path):
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
        (["--max-epsilon", "3"], "no node could answer even once"),
        (["--min-answers", "4"], "min_answers = 4"),
        (["--downlink", "half"], "downlink = 'half'"),
        (["--days", "0"], "days = 0"),
        (["--model", "a b"], "model = 'a b'"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(tmp_path, arguments, words):
    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "new"), *arguments])
    assert isinstance(done.exception, ValueError)  # of which the command line makes one line
    assert words in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_federations_file_is_checked(made, tmp_path):
    for change, words in [
        ("nodes = 0", "nodes = 0"),
        ('nodes = "two"', "nodes = 'two' must be of type int"),
        ("colour = 1", "unknown key 'colour'"),
        ("nodes =", "no valid TOML"),
    ]:
        text = [line for line in (made / "federation.toml").read_text().splitlines() if "nodes" not in line]
        (tmp_path / "federation.toml").write_text("\n".join([*text, change]))
        with pytest.raises(ValueError, match=words):
            load_federation(tmp_path)
    (tmp_path / "federation.toml").write_text("nodes = 3")
    with pytest.raises(ValueError, match="format must be 1"):
        load_federation(tmp_path)
    with pytest.raises(ValueError, match="sqsgd deploy init"):
        load_federation(tmp_path / "nowhere")


def test_a_node_names_the_code_that_its_server_may_call():
    from sqsgd.deploy.scripts import node_settings

    assert "model=" not in node_settings(Federation(), 0)
    assert 'model="mine:net"\n' in node_settings(Federation(model="mine:net"), 0)
