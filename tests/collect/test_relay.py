"""The nginx configurations of docs/collect.md, in the real nginx, before a real gateway."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest
from devices import Reporter, ask, invited, make, ones, served, wait_until
from snippets import blocks

from sqsgd import Device
from sqsgd.federation.collect import oblivious
from sqsgd.federation.collect.database import SqliteDatabase
from sqsgd.federation.collect.rounds import full_status, opened
from sqsgd.federation.collect.service import Service
from sqsgd.federation.deploy.node import free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx here: apt-get install nginx-light")
FRONT, RELAY = (
    block.text
    for name in ("front.conf", "relay.conf")
    for block in blocks("docs/collect.md")
    if block.value == name
)


@contextlib.contextmanager
def nginx(folder, text, upstream, port):
    """A running nginx: the configuration of the page without TLS, on a port of the loopback; its address."""
    folder.mkdir()
    text = "".join(line for line in text.splitlines(True) if "ssl_" not in line)
    place = upstream.removeprefix("http://")
    for shown, here in (
        ("443 ssl", f"127.0.0.1:{port}"), ("https://study.example.org", f"http://{place}"),
        ("127.0.0.1:8080", place), ("/var/cache/nginx/keys", f"{folder}/keys"),
    ):  # fmt: skip
        text = text.replace(shown, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""
    events = "events { worker_connections 2048; }"
    whole = f"{user} daemon off; pid {folder}/pid; {events} http {{ {temporary} {text} }}"
    (folder / "nginx.conf").write_text(whole)
    process = subprocess.Popen([NGINX, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "errors"])
    try:
        wait_until(lambda: process.poll() is not None or listens(port), 30)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def listens(port):
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def due(device):
    """When a device visits."""
    (kept,) = json.loads((device.folder / "reports.json").read_text()).values()
    return kept["reports"][0]["due"]


@contextlib.contextmanager
def recorder(*fields):
    """An upstream that records the bytes of requests and answers with one that reveals much."""
    seen, listener = [], socket.create_server(("127.0.0.1", 0))

    def work():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    content = b""
                    while b"\r\n\r\n" not in content or (
                        content.startswith(b"POST") and len(content.split(b"\r\n\r\n", 1)[1]) < 4
                    ):
                        content += connection.recv(65536)
                    seen.append(content)
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: message/ohttp-res\r\ncontent-length: 2\r\n"
                    head += b"".join(field + b"\r\n" for field in fields)
                    connection.sendall(head + b"connection: close\r\n\r\nok")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    listener.close()


def test_nothing_but_the_body_passes_the_relay(tmp_path):
    """Two devices that could hardly differ more are the same request, to the byte."""
    one = {"user-agent": "phone", "cookie": "id=1", "x-forwarded-for": "10.0.0.1", "accept-language": "de"}
    two = {"user-agent": "tablet", "forwarded": "for=10.0.0.2", "content-type": "text/plain", "referer": "a"}
    with recorder() as (upstream, seen), nginx(tmp_path / "nginx", RELAY, upstream, free_port()) as url:
        for headers, query in ((one, "?user=1"), (two, "?user=2"), ({}, "")):
            assert ask(url, "POST", f"/digits{query}", b"body", headers) == (200, b"ok")
        assert len(seen) == 3
        assert len(set(seen)) == 1
        head = seen[0].split(b"\r\n\r\n")[0].decode().splitlines()
        assert head[0] == "POST /.well-known/ohttp-gateway HTTP/1.1"
        assert {line.split(":")[0].lower() for line in head[1:]} == {"host", "content-length", "content-type"}
        assert ask(url, "GET", "/other")[0] == 404
        assert ask(url, "OPTIONS", "/digits")[0] == 204
        assert len(seen) == 3
    assert "10.0.0" not in "".join(path.read_text() for path in (tmp_path / "nginx").glob("*err*"))


def test_a_service_cannot_give_each_device_another_key(tmp_path):
    """Whatever it says about caches, the relay asks once."""
    fields = [
        b"cache-control: no-store",
        b"expires: 0",
        b"x-accel-expires: 0",
        b"set-cookie: id=1",
        b"vary: *",
    ]
    with (
        recorder(*fields) as (upstream, seen),
        nginx(tmp_path / "nginx", RELAY, upstream, free_port()) as url,
    ):
        for number in range(3):
            assert ask(url, "GET", f"/digits?user={number}", None, {"cookie": f"id={number}"}) == (200, b"ok")
        assert len(seen) == 1


@pytest.fixture
def study_behind(tmp_path):
    """A study, its folder, and the addresses of front and relay."""
    with contextlib.ExitStack() as stack:

        def begin(**values):
            port = free_port()
            relay = f"http://127.0.0.1:{port}/digits"
            study = make(tmp_path / "study", relay=relay, **values)
            service = stack.enter_context(served(tmp_path / "study"))
            front = stack.enter_context(nginx(tmp_path / "front", FRONT, service, free_port()))
            stack.enter_context(nginx(tmp_path / "relay", RELAY, front, port))
            return study, service, front, relay

        yield begin


def test_a_study_behind_a_relay(tmp_path, study_behind, monkeypatch):
    """Devices join, draw, wait, and report; the service sees the front alone, and the keys once."""
    asked, answer, now, shift = [], Service.answer, SqliteDatabase.now, [0.0]

    async def watched(self, request, **way):
        asked.append(request)
        return await answer(self, request, **way)

    monkeypatch.setattr(Service, "answer", watched)
    monkeypatch.setattr(SqliteDatabase, "now", lambda self: now(self) + shift[0])
    study, _, front, _ = study_behind(users=8, rounds=2, visits="drawn", round_seconds=10000.0, fewest=1)
    waiting = {}
    for number, invitation in enumerate(invited(tmp_path / "study", study, 8)):
        made = Device(tmp_path / f"device{number}", max_epsilon=8.0, clock=lambda: time.time() + shift[0])
        waiting[made] = made.report(front, ones, invitation=invitation)
        assert waiting[made]["waiting"] == 1
    while any(found["waiting"] for found in waiting.values()):
        made = min((each for each in waiting if waiting[each]["waiting"]), key=due)
        shift[0] = max(shift[0], due(made) - time.time())  # it is time for the next device
        waiting[made] = made.report(front, ones)
    shift[0] += 20000.0
    accepted = sum(found["accepted"] for found in waiting.values())
    with opened(tmp_path / "study") as (_, database):
        wait_until(lambda: full_status(database, study)["state"] == "ended", 30)
        found = full_status(database, study)
    assert (accepted, found["all_reports"], found["missed"], found["order"]) == (8, 8, 0, "run")
    gateway = [request for request in asked if request.path == oblivious.WELL_KNOWN]
    assert [request.method for request in gateway].count("GET") == 1  # the relay holds one copy
    sizes = {len(request.body) for request in gateway if request.method == "POST"}
    assert len(sizes) == 1
    assert len({tuple(sorted(request.fields)) for request in gateway if request.method == "POST"}) == 1


def test_idle_and_slow_connections_reach_the_front_alone(tmp_path, study_behind):
    """Connections that say nothing, stop in their header, or never read do not keep others out."""
    study, service, front, _ = study_behind()
    port = int(front.rsplit(":", 1)[1])
    with contextlib.ExitStack() as stack:
        for kind in range(300):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if kind % 3 == 1:
                idle.sendall(b"POST /report HTTP/1.1\r\nhost: x\r\n")
            if kind % 3 == 2:
                idle.sendall(f"GET /model/{study.id}/0 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert Reporter(tmp_path / "study", study).send(front)[0] == 200
        assert ask(front, "GET", "/health") == (200, {"healthy": True})
    assert ask(service, "GET", "/health")[0] == 200
