"""What starts parts again does not end because of an error, and is at work from the start."""

import sys

import pytest
from live import wait_until

from sqsgd.deploy import processes, supervisor
from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.supervisor import Part, Supervisor


def test_the_watch_goes_on_where_a_part_cannot_be_started(tmp_path, monkeypatch):
    """As on a full disk: it is reported and tried again, and the other parts are watched meanwhile."""
    told, tries, start = [], [], processes.start

    def fails_twice(command, *arguments):
        tries.append(command)
        if len(tries) <= 2:
            raise OSError(28, "No space left on device")
        return start(command, *arguments)

    monkeypatch.setattr(processes, "start", fails_twice)
    monkeypatch.setattr(supervisor, "_MAX_WAIT", 0.1)
    watched = Supervisor(write_federation(tmp_path / "federation", Federation(nodes=1), 3), told.append)
    watched.live.mkdir(exist_ok=True)
    for name in ("first", "second"):
        watched.parts[name] = Part(
            name=name, command=["/bin/sleep", "60"], environment={}, log=tmp_path / f"{name}.log"
        )
    watched._watching = supervisor.threading.Thread(target=watched._watch, daemon=True)
    watched._watching.start()
    try:
        started = lambda: all(part.child is not None for part in watched.parts.values())  # noqa: E731
        wait_until(started, 120, "both parts are started")
        assert sum("No space left" in text for text in told) == 2
    finally:
        watched.end()


LINK = """\
import http.server, os, ssl, sys
here = sys.argv[1]
address = "127.0.0.1", int(os.environ["SQSGD_LINK_PORT"])
server = http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{here}/server.pem", f"{here}/server.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
os.makedirs(f"{here}/empty/health")
os.chdir(f"{here}/empty")
server.serve_forever()
"""


def stand_in(tmp_path, node):
    """A federation of scripts that do nothing, with this one for its node."""
    folder = write_federation(tmp_path / "federation", Federation(nodes=1), 3)
    (tmp_path / "link.py").write_text(LINK)
    scripts = {
        "server/superlink": f'exec "{sys.executable}" "{tmp_path}/link.py" "{folder}/server"',
        "server/superexec": "exec sleep 600",
        "server/gate": "exec sleep 600",
        "server/register": "exit 0",
        "nodes/node-0/run": node,
    }
    for name, text in scripts.items():
        (folder / f"{name}.sh").write_text(f"#!/bin/sh\n{text}\n")
    return folder


def test_what_is_stopped_while_it_waits_is_not_called_up(tmp_path):
    pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
    folder, told = stand_in(tmp_path, f'touch "{tmp_path}/started"; exec sleep 600'), []
    with Supervisor(folder, told.append, stop=(tmp_path / "started").exists).running():
        pass
    assert told == []


def test_a_node_that_exits_while_the_others_connect_is_restarted(tmp_path):
    """As one that the server takes for its older self: waiting for it without restarting it is in vain."""
    pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
    folder, told = (
        stand_in(
            tmp_path,
            f"""\
if mkdir "{tmp_path}/tried"; then printf '\\033[91mERROR\\033[0m: the key is in use\\n'; exit 3; fi
echo 'SuperNode ID: 7'
exec sleep 600""",
        ),
        [],
    )
    (folder / "live/logs").mkdir(parents=True)
    (folder / "live/logs/node-0.log").write_text("Traceback of the last time")
    with Supervisor(folder, told.append).running() as running:
        assert {name: part.restarts for name, part in running.parts.items() if part.restarts} == {"node-0": 1}
    assert told[0].startswith("node-0 exited with 3 (ERROR: the key is in use); restarting it in")
    assert told[1].startswith("up: ")
    assert (folder / "live/logs/previous/node-0.log").read_text() == "Traceback of the last time"
    assert "SuperNode ID: 7" in (folder / "live/logs/node-0.log").read_text()
