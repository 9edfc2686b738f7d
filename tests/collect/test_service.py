"""What devices are told, over real sockets."""

import http.client
import json
import re
import resource
import socket
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from devices import Device, ask, invited, make, persist, served, wait_until, worker
from starlette.routing import Route

from sqsgd.federation import collect
from sqsgd.federation.collect.intake import CODES, Rejection
from sqsgd.federation.collect.rounds import opened
from sqsgd.federation.collect.service import Service


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A study of one long round, its folder and its address."""
    folder = tmp_path_factory.mktemp("service") / "study"
    study = make(folder, users=400, rounds=2)
    (folder / "page").mkdir()
    (folder / "page/index.html").write_text("<title>A study</title>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "body_seconds", 1.0)
        with served(folder) as url:
            yield study, folder, url


@pytest.fixture
def device(running):
    study, folder, _ = running
    return Device(study, invited(folder, study, 1)[0])


def code(given):
    status, body = given
    assert set(body) == {"error", "reason", "what_to_do"}, body
    return status, body["error"]


def test_a_device_reports_once(running, device):
    study, _, url = running
    status, answer = device.join(url)
    assert status == 200
    assert set(answer) == {"study", "task", "model", "seconds"}  # nothing tied to the device
    assert set(answer["task"]) == {"round", "client", "seed", "dim", "bound", "clip"}
    status, weights = ask(url, "GET", answer["model"])
    assert (status, np.frombuffer(weights, "<f4").tolist()) == (200, [0.0] * study.dim)
    assert device.send(url) == (200, {"accepted": True, "round": 0, "again": False})
    assert device.send(url) == (200, {"accepted": True, "round": 0, "again": True})


def test_the_study_is_described(running):
    study, _, url = running
    status, answer = ask(url, "GET", "/study")
    assert status == 200
    assert study.public().items() <= answer.items()
    assert (answer["round"], answer["state"]) == (0, "open")


def test_a_forged_and_a_used_invitation(running, device):
    study, _, url = running
    assert code(Device(study, "A" * 118).join(url)) == (403, "invitation-invalid")
    assert code(Device(study, None).join(url)) == (403, "invitation-invalid")
    assert device.join(url)[0] == 200
    assert code(Device(study, device.invitation).join(url)) == (409, "invitation-used")


def test_the_wrong_study(running, tmp_path):
    _, _, url = running
    other = make(tmp_path / "other")
    (invitation,) = invited(tmp_path / "other", other, 1)
    assert code(Device(other, invitation).join(url)) == (404, "wrong-study")
    foreign = Device(running[0], invitation)
    status, body = foreign.join(url)
    assert (status, body["reason"]) == (403, "the invitation is to another study")


def test_other_bodies_and_tickets(running, device):
    study, _, url = running
    for body in (b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 1000, b'{"study": 1}', b"null", b'{"study":"x"'):
        given = code(ask(url, "POST", "/join", body))
        assert given in ((400, "bad-request"), (404, "wrong-study")), body
    for ticket in (None, 5, "", "a" * 63, "A" * 64, "g" * 64, ["a" * 64]):
        asked = {"study": study.id, "ticket": ticket, "invitation": device.invitation}
        assert code(ask(url, "POST", "/join", json.dumps(asked).encode())) == (400, "bad-request"), ticket


def test_reports_that_do_not_fit(running, device):
    _, _, url = running
    device.join(url)
    message = device.encode()
    assert code(device.send(url, message[:-1] + b"!")) == (400, "malformed")
    assert code(device.send(url, message[:-1])) == (400, "malformed")
    assert code(device.send(url, message + b"!")) == (413, "too-long")
    assert code(ask(url, "POST", "/report", message)) == (400, "bad-request")
    headers = {"authorization": f"Bearer {'0' * 64}"}
    assert code(ask(url, "POST", "/report", message, headers)) == (404, "unknown-ticket")
    assert device.send(url)[0] == 200


def test_a_body_too_long_or_too_slow(running):
    url = urlsplit(running[2])
    assert code(ask(running[2], "POST", "/join", b" " * 2000)) == (413, "too-long")
    with socket.create_connection((url.hostname, url.port), timeout=30) as slow:
        slow.sendall(b"POST /join HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        assert (answer.status, json.loads(answer.read())["error"]) == (408, "too-slow")


def test_a_device_that_goes_away_in_its_body_hurts_nobody(running):
    url = urlsplit(running[2])
    with socket.create_connection((url.hostname, url.port), timeout=30) as gone:
        gone.sendall(b"POST /join HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert ask(running[2], "GET", "/health") == (200, {"healthy": True})
    status, text = ask(running[2], "GET", "/metrics")
    lines = text.decode().splitlines()
    assert status == 200
    assert "sqsgd_round 0" in lines
    assert all(line.startswith("# ") or len(line.split()) == 2 for line in lines)


def test_rounds_that_have_not_begun_and_places_that_do_not_exist(running):
    study, folder, url = running
    for round in ("1", "9" * 20, "9" * 5000, "-1", "00", "x", "\u0661"):
        path = f"/model/{study.id}/{quote(round)}"
        assert code(ask(url, "GET", path)) == (404, "not-found")
    assert code(ask(url, "GET", f"/model/{'0' * 16}/0")) == (404, "wrong-study")
    assert ask(url, "GET", "/nothing/../../study.toml")[0] == 404
    assert ask(url, "GET", "/operator.key")[0] == 404
    assert ask(url, "GET", "/") == (200, b"<title>A study</title>")  # the study's own page
    for method, path, allowed in (("GET", "/join", "POST"), ("POST", "/study", "GET")):
        assert code(ask(url, method, path)) == (405, "wrong-method")
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
        connection.request(method, path)
        assert connection.getresponse().headers["allow"] == allowed
        connection.close()
    ask(url, "GET", "/health")  # a transaction, with what was counted before it
    with opened(folder) as (_, database):
        assert dict(database.read("SELECT code, count FROM refusals"))["wrong-method"] >= 4


def test_a_full_disk_refuses_and_then_goes_on(tmp_path):
    """The system refuses to let the worker's files grow, and later lets them."""
    folder = tmp_path / "study"
    study = make(folder)
    devices = [Device(study, invitation) for invitation in invited(folder, study, 2)]
    with worker(folder) as running:
        assert devices[0].join(running.url)[0] == 200
        before = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
        size = (folder / "collect.db-wal").stat().st_size
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (size, before[1]))
        assert code(devices[0].send(running.url)) == (503, "storage")
        assert code(devices[1].join(running.url)) == (503, "storage")
        assert "no report is accepted until this is solved" in running.log.read_text()
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, before)
        assert devices[0].send(running.url) == (200, {"accepted": True, "round": 0, "again": False})
        assert devices[1].whole(running.url)[0] == 200


def test_a_database_that_is_gone(tmp_path, caplog):
    folder = tmp_path / "study"
    study = make(folder)
    device = Device(study, invited(folder, study, 1)[0])
    with served(folder) as url:
        device.join(url)
        (folder / "collect.db").rename(folder / "elsewhere.db")
        assert code(device.send(url)) == (503, "storage")
        assert code(ask(url, "GET", "/health")) == (503, "storage")
        (folder / "elsewhere.db").rename(folder / "collect.db")
        assert persist(lambda: device.send(url)) == (200, {"accepted": True, "round": 0, "again": False})
    assert "collect.db" in caplog.text


def test_postgresql_that_goes_away_and_comes_back(tmp_path, new_url, postgres_server):
    folder = tmp_path / "study"
    study = make(folder, new_url)
    device = Device(study, invited(folder, study, 1)[0])
    with served(folder) as url:
        assert device.join(url)[0] == 200
        postgres_server.stop()
        try:
            assert code(device.send(url)) == (503, "storage")
        finally:
            postgres_server.start()
        assert persist(lambda: device.send(url)) == (200, {"accepted": True, "round": 0, "again": False})


def test_a_whole_study_through_the_service(tmp_path):
    folder = tmp_path / "study"
    study = make(folder)
    with served(folder) as url:
        for invitation in invited(folder, study, study.users):
            assert Device(study, invitation).whole(url)[0] == 200
        late = Device(study, invited(folder, study, 1)[0])
        wait_until((folder / "run/summary.json").exists)
        assert code(late.join(url)) == (410, "closed")
        assert ask(url, "GET", "/study")[1]["state"] == "ended"
        assert ask(url, "GET", f"/model/{study.id}/3")[0] == 200
    assert json.loads((folder / "run/summary.json").read_text())["users"] == study.users


@pytest.mark.parametrize("code", CODES)
def test_every_refusal_says_what_to_do(code):
    rejection = Rejection(code=code, reason="because")
    body = rejection.to_dict()
    assert (body["error"], body["reason"]) == (code, "because")
    assert body["what_to_do"]
    assert 400 <= rejection.status < 600
    assert ("retry-after" in rejection.headers) == (rejection.status in (429, 503))
    # Encoding again draws new noise for the same data, which is a second report.
    assert code != "malformed" or body["what_to_do"].startswith("do not encode again")


def test_every_route_and_refusal_is_described_and_no_other(running, tmp_path):
    study = running[0]
    routes = [route for route in Service(tmp_path, study).app().routes if isinstance(route, Route)]
    described = ask(running[2], "GET", "/openapi.json")[1]
    assert {(path, method) for path, methods in described["paths"].items() for method in methods} == {
        (route.path, route.endpoint.method.lower()) for route in routes
    }
    assert described["components"]["schemas"]["Error"]["properties"]["error"]["enum"] == list(CODES)
    for methods in described["paths"].values():
        for method in methods.values():
            assert {"200", "default"} <= method["responses"].keys()
    report = described["paths"]["/report"]["post"]
    schema = report["requestBody"]["content"]["application/octet-stream"]["schema"]
    assert schema["maxLength"] == schema["minLength"] == study.made_scheme.bits // 8
    text = "".join(path.read_text() for path in Path(collect.__file__).parent.glob("*.py"))
    assert set(re.findall(r'(?:code=|Refused\(|\.count\()"([a-z-]+)"', text)) == set(CODES)
