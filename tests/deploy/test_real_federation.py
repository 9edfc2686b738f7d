"""One real federation: TLS through nginx, authenticated nodes, and those that must not get in."""

import contextlib
import json
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")

from live import Live, sqsgd, status, wait_until
from small_app import small_app

from sqsgd import Ledger
from sqsgd.federation.deploy.certificates import make_authority, make_server_pair
from sqsgd.federation.deploy.federation import load_federation

ROUNDS = 2


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "federation"
    options = ("--round-timeout", "600", "--wait-timeout", "600", "--max-epsilon", "4000")
    sqsgd("deploy", "init", folder, "--nodes", 2, "--rounds", 1, "--min-nodes", 2, *options)
    live = Live(folder, 2)
    try:
        yield live
    finally:
        left = live.end()
    assert not left


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """An app that leaves a proof where it ran: a file for each node that ran it."""
    place = tmp_path_factory.mktemp("app")
    more = f"\nimport os\nopen({str(place)!r} + '/ran by ' + os.environ['FLWR_HOME'].split('/')[-2], 'w')\n"
    return small_app(place / "plain", more)


def ran(app):
    return sorted(path.name for path in app.parent.glob("ran by *"))


def ledgers(up):
    return [Ledger(up.folder / f"nodes/node-{index}/state/ledger") for index in (0, 1)]


@pytest.fixture(scope="module")
def refused(up, app):
    """The server's owner submits an app that no node has listed."""
    return up.trained("--app", app)


@pytest.fixture(scope="module")
def allowed(up, app, refused):
    """From here on, both nodes' owners have listed it."""
    before = ran(app)
    up.change("federation.toml", "rounds = 1", f"rounds = {ROUNDS}")
    for index in (0, 1):
        sqsgd("deploy", "allow", up.folder / f"nodes/node-{index}", app)
    return before


def test_an_app_that_is_not_listed_is_refused(up, app, refused):
    code, said = refused
    assert code == 1, said
    assert "0 answers  2 rejected" in said
    assert "finished:failed" in said
    assert not list((up.folder / "server/runs/run-1").glob("model*"))
    assert ran(app) == []
    assert [len(ledger.entries) for ledger in ledgers(up)] == [0, 0]
    for node in status(up.folder)["nodes"]:
        assert node["refusals"] == 1
        assert "does not run the app" in node["last_refusal"]
        assert not (up.folder / f"nodes/{node['name']}/flwr/apps").exists()  # nothing was unpacked


def test_a_training_of_a_listed_app_is_completed(up, app, allowed):
    """What the server counted is what the owners' ledgers say."""
    code, said = up.trained("--app", app)
    assert code == 0, said
    assert (allowed, ran(app)) == ([], ["ran by node-0", "ran by node-1"])
    found = status(up.folder)
    run = found["run"]
    assert (run["status"], run["round"], run["attempts"]) == ("finished:completed", ROUNDS, 1)
    assert (run["answers"], run["rejected"], run["rounds_stepped"]) == (2 * ROUNDS, 0, ROUNDS)
    assert (Path(run["folder"]) / "model.safetensors").exists()
    assert json.loads((Path(run["folder"]) / "summary.json").read_text())["accuracy"] == run["accuracy"]
    for ledger, node in zip(ledgers(up), found["nodes"], strict=True):
        assert [entry.round for entry in ledger.entries] == list(range(ROUNDS))
        assert float(ledger.spent) == node["epsilon_spent"] == run["epsilon_total"] <= 400 * ROUNDS
        assert (node["answers"], node["ledger"]) == (ROUNDS, "good")
        assert node["bytes_up"] == run["bytes_up"] / 2
    text = sqsgd("deploy", "status", up.folder).stdout
    assert f"finished:completed: round {ROUNDS} of {ROUNDS}, accuracy" in text


@pytest.mark.faults  # minutes more of a real federation
def test_nodes_come_back_after_an_impostor(up, app, allowed):
    """Flower's SuperNode stays alive without its main thread after it has met a wrong certificate."""
    port, ended = load_federation(up.folder).port, up.log.read_text().count("certificate verify failed")
    begun = [up.starts(f"node-{index}") for index in (0, 1)]
    before = [up.of_node(f"node-{index}") for index in (0, 1)]
    pair = make_server_pair(make_authority(1).private, ("127.0.0.1",), 1)
    folder = up.folder.parent
    (folder / "impostor.pem").write_bytes(pair.public + pair.private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "impostor.pem")
    stop = threading.Event()
    up.stop_nginx()
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(0.5)

        def pretend():
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    plain, _ = listener.accept()
                    plain.settimeout(5)
                    with plain, context.wrap_socket(plain, server_side=True) as tls:
                        tls.recv(1000)

        thread = threading.Thread(target=pretend)
        thread.start()
        try:
            gone = lambda: not any(Path(f"/proc/{pids[0]}").exists() for pids in before)  # noqa: E731
            wait_until(gone, 900, "both nodes have met the impostor and ended")
        finally:
            stop.set()
            thread.join()
    assert up.log.read_text().count("certificate verify failed") > ended
    up.start_nginx()
    # the SuperLink refuses a node until the heartbeat of its last connection is overdue
    back = lambda: all(up.starts(f"node-{index}") > begun[index] for index in (0, 1))  # noqa: E731
    wait_until(back, 900, "both nodes are connected again")
    code, said = up.trained("--app", app)
    assert code == 0, said
    assert status(up.folder)["run"]["answers"] == 2 * ROUNDS
