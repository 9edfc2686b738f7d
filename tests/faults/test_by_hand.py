"""What docs/deploy.md has people type: on several machines, in the foreground, with Ctrl-C in between."""

import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")

from live import BIN, SMALL, documented, environment, metrics, sqsgd, status, typed, wait_until
from sqsgd.deploy.node import free_port

from sqsgd import Ledger
from sqsgd.deploy import processes
from sqsgd.deploy.live_state import read_state
from sqsgd.deploy.processes import Process, start_time
from sqsgd.deploy.supervisor import Supervisor

pytestmark = pytest.mark.faults


@pytest.fixture
def started(tmp_path):
    """Starts a script as one would in a terminal; everything is ended after the test."""
    mark, children = secrets.token_hex(16), []

    def start(script, folder, **more):
        log = tmp_path / f"{folder.name}-{Path(script).stem}.log"
        children.append(processes.start([folder / script], log, {**environment(), **more}, mark))
        return log

    yield start
    ours = [Process(pid=child.pid, started=start_time(child.pid) or "") for child in children]
    processes.end([ours], mark)
    for child in children:
        child.wait()
    for log in tmp_path.glob("*.log"):
        sys.stderr.write(f"== {log.name}\n{log.read_text()[-1500:]}")


def test_several_machines(tmp_path, started):
    """Each folder is copied to a place of its own, as to another machine, and its scripts are run there."""
    init, *commands = documented("On several machines")
    assert commands == [
        "./superlink.sh",
        "./superexec.sh",
        "./gate.sh",
        "./register.sh",
        "./run.sh",
        "./train.sh",
    ]
    assert init.endswith("--nodes 3 --rounds 3 --host server.example.org --port 8000")
    door, link = free_port(), free_port()
    here = f"--nodes 2 --rounds 2 --host 127.0.0.1 --port {door}"
    typed(init.replace("--nodes 3 --rounds 3 --host server.example.org --port 8000", here), tmp_path)
    places = {"server": tmp_path / "machine a/server"}
    places |= {f"node-{index}": tmp_path / f"machine {index}/node-{index}" for index in range(2)}
    for name, place in places.items():
        place.parent.mkdir()
        shutil.move(tmp_path / "federation" / ("server" if name == "server" else f"nodes/{name}"), place)
    shutil.rmtree(tmp_path / "federation")
    server = places["server"]
    own = {"SQSGD_LINK_PORT": str(link), "SQSGD_LISTEN": f"127.0.0.1:{door}"}
    log = started("./superlink.sh", server, **own)
    wait_until(
        lambda: "Uvicorn running" in log.read_text() or "startup complete" in log.read_text(), 90, "a link"
    )
    started("./superexec.sh", server, **own)
    started("./gate.sh", server, **own)
    run = {"capture_output": True, "text": True, "env": {**environment(), **own}, "cwd": server}
    for _ in range(2):  # a second time does nothing
        done = subprocess.run(["./register.sh"], **run)
        assert done.returncode == 0, done.stdout + done.stderr
    joined = [
        started("./run.sh", places[f"node-{index}"], SQSGD_NODE_PORT=str(free_port())) for index in range(2)
    ]
    wait_until(lambda: all("SuperNode ID" in log.read_text() for log in joined), 200, "two nodes")
    done = subprocess.run(["./train.sh"], **run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished:completed" in done.stderr
    for index in range(2):
        ledger = Ledger(places[f"node-{index}"] / "state/ledger")
        assert [entry.round for entry in ledger.entries] == [0, 1]
    done = subprocess.run(["./train.sh", "--resume"], **run)
    assert done.returncode == 2
    assert "there is nothing to resume" in done.stderr


def test_the_foreground_with_ctrl_c_and_resume(tmp_path):
    folder = tmp_path / "federation"
    sqsgd("deploy", "init", folder, "--nodes", 2, "--rounds", 3, *SMALL)
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [BIN / "sqsgd", "deploy", "up", folder], stderr=log, env=environment(), start_new_session=True
        )
    try:
        wait_until(lambda: len(metrics(folder)) >= 1, 600, "a round")
        mark = read_state(folder)["mark"]
        child.send_signal(signal.SIGINT)
        assert child.wait(90) == 128 + signal.SIGINT
    finally:
        sqsgd("deploy", "down", folder)
        child.wait(30)
    assert processes.marked(mark) == []
    assert "resume with: sqsgd deploy up" in (tmp_path / "log").read_text()
    assert status(folder)["run"]["status"] == "finished:stopped"
    done = sqsgd("deploy", "up", folder, "--resume")
    assert "finished:completed" in done.stderr
    found = status(folder)
    assert (found["run"]["round"], found["run"]["attempts"], found["up"]) == (3, 2, False)
    assert [line["round"] for line in metrics(folder)] == [0, 1, 2]
    assert processes.marked(read_state(folder)["mark"]) == []
    assert all(line["clients"] for line in metrics(folder))


def test_an_up_right_after_a_down_finds_its_nodes(tmp_path):
    """Nodes sign off while the server still runs; one that did not is refused for a minute."""
    folder = tmp_path / "federation"
    sqsgd("deploy", "init", folder, "--nodes", 2, *SMALL)
    for _ in range(2):
        told = []
        with Supervisor(folder, told.append).running() as running:
            assert [part.restarts for part in running.parts.values()] == [0] * 5, told
        assert len(told) == 1, told  # that it is up
        assert "terminated gracefully" in (folder / "live/logs/node-1.log").read_text()
