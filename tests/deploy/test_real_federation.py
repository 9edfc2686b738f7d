"""One real federation: TLS through nginx, authenticated nodes, and those that must not get in."""

import contextlib
import json
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")

from live import Live, sqsgd, status, wait_until

from sqsgd import Ledger
from sqsgd.federation.deploy.certificates import make_authority, make_server_pair
from sqsgd.federation.deploy.federation import load_federation

ROUNDS = 3


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "federation"
    options = ("--model", "mlp", "--round-timeout", "300", "--max-epsilon", "4000")
    sqsgd("deploy", "init", folder, "--nodes", 2, "--rounds", ROUNDS, "--min-nodes", 2, *options)
    live = Live(folder, 2)
    try:
        yield live
    finally:
        left = live.end()
    assert not left


def ledgers(up):
    return [Ledger(up.folder / f"nodes/node-{index}/state/ledger") for index in (0, 1)]


def test_a_training_is_completed(up):
    """What the server counted is what the owners' ledgers say."""
    code, said = up.trained()
    assert code == 0, said
    found = status(up.folder)
    run = found["run"]
    assert (run["status"], run["round"], run["attempts"]) == ("finished:completed", ROUNDS, 1)
    assert (run["answers"], run["rejected"], run["rounds_stepped"]) == (2 * ROUNDS, 0, ROUNDS)
    assert (Path(run["folder"]) / "model.safetensors").exists()
    assert json.loads((Path(run["folder"]) / "summary.json").read_text())["accuracy"] == run["accuracy"]
    for ledger, node in zip(ledgers(up), found["nodes"], strict=True):
        assert [entry.round for entry in ledger.entries] == list(range(ROUNDS))
        assert float(ledger.spent) == node["epsilon_spent"] == run["epsilon_total"] <= 400 * ROUNDS
        assert (node["answers"], node["refusals"], node["ledger"]) == (ROUNDS, 0, "good")
        assert node["bytes_up"] == run["bytes_up"] / 2
    text = sqsgd("deploy", "status", up.folder).stdout
    assert f"finished:completed: round {ROUNDS} of {ROUNDS}, accuracy" in text
    assert "there is nothing to resume" in up.trained("--resume")[1]


@pytest.fixture(scope="module")
def one_round(up):
    """From here on, a training has one round; the nodes are registered."""
    up.change("federation.toml", f"rounds = {ROUNDS}", "rounds = 1")
    if status(up.folder)["run"] is None:  # if a test is run alone
        assert up.trained()[0] == 0


def answered(up):
    """The reports that counted in the last training, which had one round."""
    return json.loads((Path(status(up.folder)["run"]["folder"]) / "metrics.jsonl").read_text())["clients"]


@pytest.fixture(scope="module")
def other_app(one_round, tmp_path_factory):
    """The ready app with one line more, which leaves a proof that it ran."""
    from sqsgd.federation.flower import app_folder

    place = tmp_path_factory.mktemp("app")
    shutil.copytree(app_folder(), place / "other_app", ignore=shutil.ignore_patterns("__pycache__"))
    with (place / "other_app/sqsgd_app/client_app.py").open("a") as file:
        file.write(f"\nopen({str(place / 'ran')!r}, 'w').close()\n")
    return place / "other_app", place / "ran"


def test_an_app_that_is_not_listed_is_refused(up, other_app):
    """It is submitted by the server's owner, and run by no node."""
    app, proof = other_app
    before = [ledger.path.read_bytes() for ledger in ledgers(up)]
    code, said = up.trained("--app", app)
    assert code == 1, said
    assert "0 answers  2 rejected" in said
    assert "finished:failed" in said
    assert not list((up.folder / "server/runs/run-2").glob("model*"))
    assert not proof.exists()
    assert [ledger.path.read_bytes() for ledger in ledgers(up)] == before
    for node in status(up.folder)["nodes"]:
        assert node["refusals"] == 1
        assert "does not run the app" in node["last_refusal"]
        assert not (up.folder / f"nodes/{node['name']}/flwr/apps").exists()  # nothing was unpacked


def test_a_listed_app_runs(up, other_app):
    app, proof = other_app
    for index in (0, 1):
        sqsgd("deploy", "allow", up.folder / f"nodes/node-{index}", app)
    code, said = up.trained("--app", app)
    assert code == 0, said
    assert proof.exists()
    assert [len(ledger.entries) for ledger in ledgers(up)] == [ROUNDS + 1] * 2


@pytest.mark.faults  # minutes more of a real federation
def test_nodes_come_back_after_an_impostor(up, one_round):
    """Flower's SuperNode stays alive without its main thread after it has met a wrong certificate."""
    port, ended = load_federation(up.folder).port, up.log.read_text().count("certificate verify failed")
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
    for _ in range(10):  # the SuperLink refuses a node until the heartbeat of its last connection is overdue
        code, said = up.trained()
        if code == 0:
            break
    assert code == 0, said
    assert answered(up) == 2
