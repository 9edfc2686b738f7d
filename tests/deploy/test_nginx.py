"""nginx in front of a SuperLink: what it lets through, and what cannot stop it."""

import contextlib
import http.client
import http.server
import socket
import ssl
import threading

import pytest
from nginx_server import running_nginx
from test_folders import sent

from sqsgd.federation.deploy.certificates import make_node_pair
from sqsgd.federation.deploy.federation import load_federation
from sqsgd.federation.deploy.folders import revoke

FLEET = "/v1/fleet/pull-messages"


class Link(http.server.BaseHTTPRequestHandler):
    """Stands for the SuperLink: says which path arrived, with how many bytes."""

    def do_POST(self):
        self.rfile.read(length := int(self.headers["Content-Length"]))
        said = f"{self.path} {length}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST  # noqa: N815 - the name that http.server calls

    def log_message(self, *_):
        pass


@pytest.fixture
def door(federation):
    """A function that sends a request through nginx; its answer is (status, what the SuperLink said)."""
    folder = federation / "server"
    written = (folder / "nginx.conf").read_text()
    assert "client_header_timeout 10s; client_body_timeout 10s;" in written
    (folder / "nginx.conf").write_text(written.replace("_timeout 10s;", "_timeout 2s;"))
    link = http.server.ThreadingHTTPServer(("127.0.0.1", load_federation(folder).link_port), Link)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    link.socket = context.wrap_socket(link.socket, server_side=True)
    threading.Thread(target=link.serve_forever, daemon=True).start()
    trust = ssl.create_default_context(cafile=folder / "ca.pem")
    with running_nginx(folder) as (address, reload):

        def ask(path=FLEET, body=b"x", key="node-0", method="POST", seconds=60):
            public = key if isinstance(key, bytes) else (federation / f"nodes/{key}/key.pub").read_bytes()
            headers = {"flwr-public-key": sent(public)} if public else {}
            connection = http.client.HTTPSConnection(address, context=trust, timeout=seconds)
            with contextlib.closing(connection):
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode() if answer.status == 200 else ""

        ask.address, ask.trust, ask.reload, ask.folder = address, trust, reload, federation
        yield ask
    link.shutdown()
    link.server_close()


def test_the_fleet_api_is_let_through_and_nothing_else(door):
    assert door() == (200, f"{FLEET} 1")
    assert door("/", method="GET", body=None) == (200, "")  # answered by nginx itself
    for path in (
        "/v1/control/start-run", "/v1/runtime/pull-task-input", "/v1/fleet", "/v1/fleet/", "/V1/FLEET/a",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/a/b", "//",
        "/v1/fleet/..%2fcontrol", "/v1/fleet/a;b", "/health", "/v1/fleet/a%00", "/v1/control/x?/v1/fleet/a",
        "/v1/control/start-run/../../fleet/a", "/v1//fleet/a", "/v1/fleet/a?b",
    ):  # fmt: skip
        assert door(path)[0] in (400, 403), path
    assert door(method="GET")[0] == 403


def test_strangers_are_refused(door):
    assert door(key=make_node_pair("stranger").public)[0] == 401
    assert door(key=b"")[0] == 401
    with socket.create_connection(door.address.split(":")) as plain:
        plain.sendall(b"POST /v1/fleet/a HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"400" in plain.recv(100)  # without TLS


def test_a_revoked_key_is_refused(door):
    assert [door(key=f"node-{index}")[0] for index in (0, 1)] == [200, 200]
    door.reload(lambda: revoke(door.folder, "node-1")[1])
    assert [door(key=f"node-{index}")[0] for index in (0, 1)] == [200, 401]
    assert door("/", key="node-1", method="GET", body=None)[0] == 401


def test_a_report_fits_and_more_does_not(door):
    most = 64 * 1024 + 2 * load_federation(door.folder).bytes
    assert door(body=bytes(most)) == (200, f"{FLEET} {most}")
    assert door(body=bytes(most + 1))[0] == 413
    assert not list((door.folder / "server/tmp").rglob("*[0-9]"))  # bodies stay in memory


def test_connections_that_send_no_request_stop_nobody(door):
    """More than one address may have; a node is answered while they are open, and they are closed."""
    known = sent((door.folder / "nodes/node-1/key.pub").read_bytes())
    head = f"POST /v1/fleet/a HTTP/1.1\r\nHost: a\r\nflwr-public-key: {known}".encode()
    host, _, port = door.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for number in range(150):
            plain = socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0), timeout=60)
            stack.enter_context(plain)
            if number % 7:
                attacker = stack.enter_context(door.trust.wrap_socket(plain, server_hostname=host))
                attacker.sendall(head if number % 2 else head + b"\r\nContent-Length: 9\r\n\r\n")
        for _ in range(5):
            assert door(seconds=100)[0] == 200
        attacker.settimeout(300)
        while attacker.recv(1000):
            pass
