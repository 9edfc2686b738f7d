"""The SuperNode: which bundles it opens, how soon it asks again, and which requests it repeats."""

import hashlib
import inspect
import re
import socket
import ssl
import threading
import tracemalloc

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
from sqsgd.flower.internals import OLDEST_DEPLOYED, untested

if untested(OLDEST_DEPLOYED):
    pytest.skip(f"sqsgd deploy is not for {untested(OLDEST_DEPLOYED)}", allow_module_level=True)

import flwr.supernode.fleet_http_connection as sending
import flwr.supernode.start_client_internal as receiving
import httpx
from app_runs import archive, write_app
from federation import message, request
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.nodestate import NodeStateFactory

from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.flower import guard
from sqsgd.flower.supernode import Pauses, owner_settings, read_if_allowed, repeating

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of pathspec
BOMB = archive({"pyproject.toml": bytes(64 * 2**20)})


def received(content):
    """The settings that Flower's own loop keeps for an app which comes with a message."""
    store = ObjectStoreFactory().store()
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    state.set_node_id(5)
    sent = message(request())
    sent.metadata.__dict__["_run_id"] = 1
    objects = {key: part.deflate() for key, part in get_all_nested_objects(sent).items()}
    run = Run.create_empty(1)
    run.fab_id, run.fab_version = "tester/plain", "1.0.0"
    run.fab_hash, run.series_id = hashlib.sha256(content).hexdigest(), 1
    receiving._pull_and_store_message(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (sent, get_object_tree(sent)),
        get_run=lambda _: run,
        get_fab=lambda *_: Fab(run.fab_hash, content, {}),
        pull_object=lambda _, name: objects[name],
        confirm_message_received=lambda *_: None,
        trusted_entities=None,
    )
    return state.get_run_series_context(1).run_config


@pytest.fixture
def allowed(monkeypatch, tmp_path):
    monkeypatch.setenv(guard.LIST, str(tmp_path / "allowed-apps"))
    return tmp_path / "allowed-apps"


@pytest.mark.parametrize("listed", [True, False])
def test_a_bomb_is_not_opened(monkeypatch, allowed, listed):
    allowed.write_text(hashlib.sha256(BOMB).hexdigest() if listed else "")
    monkeypatch.setattr(receiving, "get_fused_config_from_fab", read_if_allowed(get_fused_config_from_fab))
    tracemalloc.start()
    try:
        assert received(BOMB) == {guard.UNREAD: True}
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_flower_would_open_it():
    """So that the test above is seen to fail."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="TOML"):
            received(BOMB)
        assert tracemalloc.get_traced_memory()[1] > 64 * 2**20
    finally:
        tracemalloc.stop()


def test_the_settings_of_an_allowed_app_are_read(monkeypatch, allowed, tmp_path):
    folder = write_app(tmp_path / "plain")
    with (folder / "pyproject.toml").open("a") as file:
        file.write("\n[tool.flwr.app.config]\nbatch = 7\n")
    content = build_fab_from_disk(folder)
    monkeypatch.setattr(receiving, "get_fused_config_from_fab", read_if_allowed(get_fused_config_from_fab))
    allowed.write_text("")
    assert received(content) == {guard.UNREAD: True}
    allowed.write_text(hashlib.sha256(content).hexdigest())
    assert received(content) == {"batch": 7}


def test_flower_opens_bundles_and_pauses_by_the_names_that_are_replaced():
    text = inspect.getsource(receiving)
    assert text.count("get_fused_config_from_fab(") == 1
    assert "zipfile" not in text
    assert set(re.findall(r"\btime\.\w+\(.*\)", text)) == {"time.sleep(3)", "time.sleep(0.5)"}


def test_it_asks_again_soon_after_a_message():
    slept = []
    pauses = Pauses(slept.append)
    for seconds in (3, 3, 3, 3, 3, 3, 0.5, 0.5, 3, 3):
        pauses.sleep(seconds)
    assert slept == [0.25, 0.5, 1.0, 2.0, 3, 3, 0.1, 0.1, 0.25, 0.5]


def test_the_owners_settings_are_read_as_flower_reads_them():
    words = ["--superlink", "x", "--node-config", 'state-dir="/a b" warm-process=false max-epsilon=5.0']
    assert owner_settings(words) == {"state-dir": "/a b", "warm-process": False, "max-epsilon": 5.0}
    assert owner_settings(["--superlink", "x"]) == {}


@pytest.fixture
def cut_once(tmp_path):
    """A server that cuts its first connection in the handshake: its port, and what trusts it."""
    server = write_federation(tmp_path / "federation", Federation(nodes=1), 3) / "server"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")

    def serve():
        first, _ = listening.accept()
        first.recv(1 << 16)
        first.close()
        while True:
            try:
                with context.wrap_socket(listening.accept()[0], server_side=True) as one:
                    one.recv(1 << 16)
                    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            except ssl.SSLError:  # of a client that does not trust it
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], ssl.create_default_context(cafile=str(server / "ca.pem"))
        listening.shutdown(socket.SHUT_RDWR)


def asked(make, port, trusting):
    """The answers to a request that is repeated as Flower does."""
    return make().invoke(lambda: httpx.get(f"https://127.0.0.1:{port}", verify=trusting, timeout=60))


def test_a_request_whose_connection_is_cut_is_repeated(cut_once):
    assert asked(repeating(sending.make_simple_http_retry_invoker), *cut_once).status_code == 200


def test_flower_alone_would_lose_it(cut_once):
    with pytest.raises(httpx.ConnectError, match="EOF"):
        asked(sending.make_simple_http_retry_invoker, *cut_once)


def test_a_server_with_another_certificate_is_not_asked_again(cut_once):
    with pytest.raises(httpx.ConnectError, match="EOF"):
        asked(sending.make_simple_http_retry_invoker, *cut_once)
    with pytest.raises(httpx.ConnectError, match="certificate"):
        asked(repeating(sending.make_simple_http_retry_invoker), cut_once[0], ssl.create_default_context())
