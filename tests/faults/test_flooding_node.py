"""A registered node that sends 20 megabytes in each reply: the server's disk stays as it is."""

import contextlib
import shutil
import socket
import ssl
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")

from hostile_client_app import FLOOD, HUGE
from live import SMALL, documented, finished, logs, metrics, sqsgd, status, typed, wait_until
from test_quotas import signed

pytestmark = pytest.mark.faults
ROUNDS = 4
MOST_BYTES = 16_000_000
"""Of the server's folder: twice a minute's quota in each of two rounds, a journal, and all else."""


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """A federation of two honest nodes and the flooding one, after its training."""
    from sqsgd.flower import app_folder

    place = tmp_path_factory.mktemp("flood")
    folder, app = place / "federation", place / "my_app"
    (allow,) = documented("Who is protected against whom")
    shutil.copytree(app_folder(), app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(Path(__file__).with_name("hostile_client_app.py"), app / "sqsgd_app/client_app.py")
    options = [*SMALL[:-2], "--round-timeout", 400, "--min-nodes", 3]
    sqsgd("deploy", "init", folder, "--nodes", 3, "--rounds", ROUNDS, *options)
    for index in range(3):
        typed(allow.replace("node-0", f"node-{index}"), place)
    conf = folder / "nodes/node-2/node.conf"  # whose owner leaves the app alone
    conf.write_text(conf.read_text().replace("wrap-apps=true", "wrap-apps=false") + 'hostile="flood"\n')
    sqsgd("deploy", "up", folder, "--detach", "--app", app)
    try:
        yield folder, finished(folder)
    finally:
        sys.stderr.write(logs(folder))
        sqsgd("deploy", "down", folder)


def test_the_servers_disk_stays_as_it_is(after):
    """Nothing is kept of what was rejected, and little is accepted: else it is 20 megabytes a round."""
    server = after[0] / "server"
    sizes = {str(path): path.stat().st_size for path in server.rglob("*") if path.is_file()}
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:5])
    sys.stderr.write(f"{sum(sizes.values()):,} bytes in the server's folder, of them {largest}\n")
    assert sum(sizes.values()) < MOST_BYTES < FLOOD * HUGE, largest


def test_it_is_rejected_sits_out_and_the_training_goes_on(after):
    folder, found = after
    assert found["run"]["status"] == "finished:completed"
    assert [line["clients"] for line in metrics(folder)] == [2] * ROUNDS
    assert [line["asked"] for line in metrics(folder)] == [3, 3, 2, 2]
    (reason, reason_again) = (each["reason"] for line in metrics(folder) for each in line["rejected"])
    assert reason == reason_again
    assert f"the answer has {FLOOD + 2} parts and a report has 3: nothing was fetched" in reason


def send(folder, address, name, size):
    """The gate's status for a body that a node sends on its own account, with its key; 0: the line broke."""
    key, public = folder / f"nodes/{name}/key", folder / f"server/nodes/{name}.pub"
    host, _, port = address.partition(":")
    trust = ssl.create_default_context(cafile=str(folder / "server/ca.pem"))
    plain = socket.create_connection((host, int(port)), 60)
    with contextlib.suppress(OSError), trust.wrap_socket(plain, server_hostname=host) as link:
        link.sendall(signed(key.read_bytes(), public.read_bytes(), size))
        link.settimeout(0.5)
        try:
            answer = link.recv(100)  # the gate does not read what it refuses
        except TimeoutError:
            link.settimeout(60)
            link.sendall(bytes(size))
            answer = link.recv(100)
        return int(answer.split(b" ")[1]) if answer else 0
    return 0


def test_the_operator_sees_which_node_it_was(after):
    """A node need not stop when its reply is rejected: this one goes on until the gate refuses it."""
    folder, found = after
    for _ in range(100):
        if (code := send(folder, found["address"], "node-2", HUGE)) == 503:
            break
    assert code == 503
    assert send(folder, found["address"], "node-1", 10) != 503
    wait_until(lambda: status(folder)["wire"]["over_quota"], 60, "the gate's counts")
    found = status(folder)
    counts = found["wire"]["nodes"]
    assert found["wire"]["over_quota"] == counts["node-2"]["over_quota"] >= 1
    assert [counts[f"node-{index}"]["over_quota"] for index in (0, 1)] == [0, 0]
    assert "node-2 has sent its" in (folder / "live/logs/gate.log").read_text()
    assert "node-2 sent its quota of bytes" in sqsgd("deploy", "status", folder).stdout
    assert 'sqsgd_gate_over_quota_total{node="node-2"}' in sqsgd("deploy", "metrics", folder).stdout
