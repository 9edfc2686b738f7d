"""What each machine runs."""

import os
import shutil
import socket
import subprocess

import pytest
from live import BIN
from small_federation import SMALL
from sqsgd.deploy.node import free_port

from sqsgd.deploy import scripts
from sqsgd.deploy.federation import Federation
from sqsgd.flower import hand_over


def test_a_nodes_script_finds_its_own_folder_after_a_copy(made, tmp_path):
    """What Flower would be started with, on a machine where the folder lies elsewhere."""
    place = tmp_path / "an other place"
    place.mkdir()
    shutil.copytree(made / "nodes/node-0", place / "node-0")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(
        '#!/bin/sh\n[ "$2" = sqsgd.flower.supernode ] || exec python "$@"\n'
        'printf "%s\\n" "$@" "$FLWR_HOME" "$(command -v flwr-clientapp)"\n'
    )
    (tools / "python3").chmod(0o700)
    environment = {**os.environ, "PATH": f"{tools}:{BIN}:{os.environ['PATH']}"}
    node = place / "node-0"
    refused = subprocess.run([node / "run.sh"], env=environment, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "set the address of the server" in refused.stderr
    away = f"127.0.0.1:{free_port()}"  # nobody answers there: a node waits for its server
    environment |= {"SQSGD_SERVER": away}
    said = subprocess.run([node / "run.sh"], env=environment, capture_output=True, text=True, check=True)
    words = said.stdout.splitlines()
    assert words[words.index("--superlink") + 1] == away
    assert words[words.index("--root-certificates") + 1] == str(node / "ca.pem")
    settings = words[words.index("--node-config") + 1]
    assert settings.startswith(f'state-dir="{node}/state" max-epsilon=1600.0 ')
    assert words[-2:] == [str(node / "flwr"), str(node / "bin/flwr-clientapp")]
    (node / "node.conf").write_text('# mine\nstate-dir="/srv/ledgers"\nmax-epsilon=5.0\n')
    said = subprocess.run([node / "run.sh"], env=environment, capture_output=True, text=True, check=True)
    assert 'state-dir="/srv/ledgers" max-epsilon=5.0 ' in said.stdout.splitlines()


def test_a_message_without_a_warm_process_takes_the_cold_path(made, tmp_path, monkeypatch):
    """Flower's own help comes from a process of the guard, unless another says that it took the message."""
    command, listener = [made / "nodes/node-0/bin/flwr-clientapp", "--help"], socket.socket(socket.AF_UNIX)
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "SQSGD_HAND_OVER": hand_over.__file__}
    environment["SQSGD_WARM_SOCKET"] = str(tmp_path / "nobody")
    cold = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "usage: flwr-clientapp" in cold.stdout
    with listener:
        monkeypatch.chdir(tmp_path)
        listener.bind("s")
        listener.listen()
        environment["SQSGD_WARM_SOCKET"] = str(tmp_path / "s")
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as asking:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(100) == b'["--help"]\n'
                connection.sendall(hand_over.TAKEN)
                assert (asking.wait(60), asking.stdout.read()) == (0, "")


def test_a_node_starts_no_other_kind_of_code(made):
    """Flower knows more kinds than client apps, and starts each by its name."""
    for name in ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation"):
        done = subprocess.run(
            [made / "nodes/node-0/bin" / name, "--token", "x"], capture_output=True, text=True
        )
        assert done.returncode == 1
        assert "runs client apps only" in done.stderr


def test_flowers_names_of_code_are_all_known():
    constants = pytest.importorskip("flwr.supercore.constant", reason="needs pip install 'sqsgd[flower]'")
    known = {"flwr-clientapp", *scripts.REFUSED_COMMANDS}
    assert set(constants.TASK_TYPE_TO_COMMAND.values()) <= known


def test_a_node_names_the_code_that_its_server_may_call():
    assert "model=" not in scripts.node_settings(SMALL, 0)
    assert 'model="mine:net"\n' in scripts.node_settings(Federation(model="mine:net"), 0)


def test_a_node_is_asked_for_evaluations_only_if_that_was_wanted():
    assert "\n# evaluate-epsilon=1.0\n" in scripts.node_settings(SMALL, 0)
    assert "\nevaluate-epsilon=0.5\n" in scripts.node_settings(Federation(evaluate_epsilon=0.5), 0)


def test_the_address_of_a_server_that_nodes_are_told():
    assert '"[2001:db8::1]:8000"' in scripts.node(Federation(hosts=("2001:db8::1",), port=8000))
    assert "0.0.0.0:8000" in scripts.gate(SMALL)  # which has no port of its own
    assert "0.0.0.0:9999" in scripts.gate(Federation(port=9999))
