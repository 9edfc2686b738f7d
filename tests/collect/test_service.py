"""The service: what devices are told, over real sockets, and that nobody is told yes before the commit."""

import asyncio
import http.client
import json
import signal
import socket
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from devices import Reporter, ask, invited, make, served, token, wait_until, worker

from sqsgd.federation.collect import intake, oblivious, service, tokens
from sqsgd.federation.collect.database import Conflict, DatabaseFailed
from sqsgd.federation.collect.intake import Probe, Rejection
from sqsgd.federation.collect.rounds import opened
from sqsgd.federation.collect.service import Commits, Connection, Service, prepare
from sqsgd.federation.collect.tokens import base64url

ACCEPTED = (200, {"accepted": True, "round": 0})
JSON = {"content-type": "application/json"}


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
    return Reporter(folder, study)


@pytest.fixture
def alone(tmp_path):
    """The folder of a small study, and two of its devices."""
    folder = tmp_path / "study"
    study = make(folder)
    return folder, Reporter(folder, study), Reporter(folder, study)


def code(given):
    status, body = given
    assert set(body) == {"error", "reason", "what_to_do"}, body
    return status, body["error"]


def through(url, method, path, body=b"", fields=None):
    """The same request through the gateway: the inner status and body."""
    keys = ask(url, "GET", oblivious.WELL_KNOWN)[1]
    asked = oblivious.Request(method, path, fields or {}, body)
    capsule, opened_by = oblivious.encapsulate(keys, oblivious.pack_request(asked, 1024))
    status, sealed = ask(url, "POST", oblivious.WELL_KNOWN, capsule, {"content-type": oblivious.REQUEST})
    assert status == 200, sealed
    content = opened_by(sealed)
    assert len(content) % 1024 == 0
    given = oblivious.read_answer(content)
    kind = given.fields["content-type"]
    return given.status, json.loads(given.body) if kind == "application/json" else given.body


@pytest.mark.parametrize("way", [ask, through])
def test_a_device_reports_once(running, device, way):
    study, _, url = running
    status, known = way(url, "GET", "/round")
    assert (status, known["study"], known["round"], known["state"]) == (200, study.id, 0, "open")
    status, weights = way(url, "GET", known["model"])
    assert (status, np.frombuffer(weights, "<f4").tolist()) == (200, [0.0] * study.dim)
    assert way(url, "POST", "/report", device.body(), JSON) == ACCEPTED
    assert code(way(url, "POST", "/report", device.body(), JSON)) == (409, "token-spent")


def test_the_study_has_the_same_bytes_for_ever(running):
    study, _, url = running
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port)
    for _ in range(2):
        connection.request("GET", "/study")
        answer = connection.getresponse()
        assert answer.read() == study.description
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
    connection.close()


def blinded(study, count=1):
    """A token request, what was signed, and r."""
    text, r = study.tokens.input(tokens.challenge(study.id), bytes(32)), study.tokens.new_blind()
    return study.tokens.request(text, bytes(48), r) * count, text, r


def test_tokens_are_issued_for_an_invitation(running, tmp_path):
    study, folder, url = running
    (invitation,) = invited(folder, study, 1)
    request, text, r = blinded(study)
    headers = {"content-type": "application/private-token-request", "authorization": f"Bearer {invitation}"}
    status, signed = ask(url, "POST", "/token", request, headers)
    assert (status, len(study.tokens.token(text, signed, r))) == (200, 354)
    assert ask(url, "POST", "/token", request, headers) == (200, signed)  # the answer was lost
    other = blinded(study)[0]
    assert code(ask(url, "POST", "/token", other, headers)) == (409, "invitation-used")
    for wrong in ("", "A" * 150, invited(tmp_path / "other", make(tmp_path / "other"), 1)[0]):
        forged = {**headers, "authorization": f"Bearer {wrong}"}
        assert code(ask(url, "POST", "/token", other, forged)) == (403, "invitation-invalid")
    assert code(ask(url, "POST", "/token", other[:-1], headers)) == (400, "bad-request")
    assert code(ask(url, "POST", "/token", other[:3] + b"\xff" * 256, headers)) == (400, "bad-request")


def test_a_worker_without_the_key_issues_no_tokens(tmp_path):
    folder = tmp_path / "study"
    study = make(folder, admission="open", tokens_per_minute=1)
    headers = {"content-type": "application/private-token-request"}
    with served(folder) as url:
        assert ask(url, "POST", "/token", blinded(study)[0], headers)[0] == 200
        assert code(ask(url, "POST", "/token", blinded(study)[0], headers)) == (429, "too-many")
    (folder / tokens.KEY).unlink()
    with served(folder) as url:
        assert code(ask(url, "POST", "/token", blinded(study)[0], headers)) == (404, "not-found")
        assert ask(url, "GET", "/health")[0] == 200


def test_reports_that_do_not_fit(running, device, tmp_path):
    _, _, url = running
    message, good = device.body() and device.message, json.loads(device.body())
    for report in (message[:-1] + b"!", message[:-1], message + b"!", b""):
        assert code(device.send(url, message=report or b"?")) == (400, "malformed")
    damaged = bytearray(device.token)
    damaged[-1] ^= 1
    other = token(tmp_path / "other", make(tmp_path / "other"))
    for wrong in (bytes(damaged), device.token[:-1], other, b""):
        body = json.dumps({**good, "token": base64url(wrong)}).encode()
        assert code(ask(url, "POST", "/report", body, JSON)) == (403, "token-invalid")
    for name, value, error in (
        ("round", 1, "malformed"), ("round", 2, "bad-request"), ("round", True, "bad-request"),
        ("round", -1, "bad-request"), ("round", "0", "bad-request"), ("study", "0" * 64, "wrong-study"),
        ("token", 5, "bad-request"), ("token", good["token"] + "=", "bad-request"),
        ("report", "\u00e4", "bad-request"),
        ("more", 1, "bad-request"),
    ):  # fmt: skip
        body = json.dumps({**good, name: value}).encode()
        assert code(ask(url, "POST", "/report", body, JSON))[1] == error, name
    for body in (b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 1000, b"null"):
        assert code(ask(url, "POST", "/report", body, JSON)) == (400, "bad-request"), body
    assert device.send(url) == ACCEPTED  # nothing of it spent the token


def test_a_page_of_another_origin_cannot_post(running, device):
    """Without a preflight, which the service does not answer, browsers send these three types alone."""
    _, _, url = running
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        for path in ("/report", "/token", oblivious.WELL_KNOWN):
            headers = {"content-type": kind} if kind else {}
            body = device.body()[: 259 if path == "/token" else None]
            assert code(ask(url, "POST", path, body, headers)) == (400, "bad-request")
    assert code(ask(url, "OPTIONS", "/report"))[0] == 405


def test_a_body_too_long_or_too_slow_or_broken_off(running):
    url = urlsplit(running[2])
    begun = b"POST /report HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    assert code(ask(running[2], "POST", "/report", b" " * 2000)) == (413, "too-long")
    with socket.create_connection((url.hostname, url.port), timeout=30) as slow:
        slow.sendall(begun)
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        assert (answer.status, json.loads(answer.read())["error"]) == (408, "too-slow")
    with socket.create_connection((url.hostname, url.port), timeout=30) as gone:
        gone.sendall(begun)
    assert ask(running[2], "GET", "/health") == (200, {"healthy": True})


def test_what_the_gateway_cannot_open(running):
    _, _, url = running
    keys, kind = ask(url, "GET", oblivious.WELL_KNOWN)[1], {"content-type": oblivious.REQUEST}
    capsule, opened_by = oblivious.encapsulate(keys, b"nonsense")
    status, problem = ask(url, "POST", oblivious.WELL_KNOWN, bytes([capsule[0] ^ 1]) + capsule[1:], kind)
    assert (status, json.loads(problem)["type"].endswith("#ohttp-key")) == (400, True)
    assert ask(url, "POST", oblivious.WELL_KNOWN, b"short", kind)[0] == 400
    status, sealed = ask(url, "POST", oblivious.WELL_KNOWN, capsule, kind)
    inner = oblivious.read_answer(opened_by(sealed))
    assert (status, inner.status, json.loads(inner.body)["error"]) == (200, 400, "bad-request")
    for path in (oblivious.WELL_KNOWN, "/health", "/operator.key", "/"):
        assert code(through(url, "GET", path)) == (404, "not-found")
    assert code(through(url, "POST", "/study")) == (405, "wrong-method")


def test_places_that_do_not_exist_and_counters(running):
    study, folder, url = running
    for round in ("1", "9" * 20, "9" * 5000, "-1", "00", "x", "\u0661"):
        path = f"/model/{study.id}/{quote(round)}"
        assert code(ask(url, "GET", path)) == (404, "not-found")
    assert code(ask(url, "GET", f"/model/{'0' * 64}/0")) == (404, "wrong-study")
    for path in ("/nothing/../../study.toml", "/operator.key", "/token.key", "/model"):
        assert ask(url, "GET", path)[0] == 404
    assert ask(url, "GET", "/") == (200, b"<title>A study</title>")  # the study's page
    for method, path in (("GET", "/report"), ("POST", "/study")):
        assert code(ask(url, method, path)) == (405, "wrong-method")

    def counted():
        with opened(folder) as (_, database):
            return dict(database.read("SELECT code, count FROM refusals")).get("wrong-method", 0)

    wait_until(lambda: counted() >= 2)


def test_a_reader_of_the_file_does_not_stall_the_service(alone):
    """As a backup does: a round ends and the next takes reports while a reader holds on."""
    folder, first, second = alone
    study = first.study
    with served(folder) as url, sqlite3.connect(folder / "collect.db") as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM counts").fetchall()
        for _ in range(study.expected):
            assert Reporter(folder, study).send(url)[0] == 200
        wait_until(lambda: ask(url, "GET", "/round")[1]["round"] == 1, 20)
        assert second.send(url, round=1)[0] == 200
        reader.execute("COMMIT")


def test_a_damaged_database_is_not_healthy(alone, monkeypatch):
    """A round that cannot be averaged; the reports of it are kept, and count when the row is restored."""
    folder, *devices = alone
    damage = "UPDATE rounds SET content = ?"
    monkeypatch.setattr(service, "_FAILED_SECONDS", 0.2)
    with served(folder) as url, opened(folder) as (study, database):
        ((content,),) = database.read("SELECT content FROM rounds")
        database.write(damage, b"damaged")
        for device in [*devices, Reporter(folder, study), Reporter(folder, study)]:
            assert device.send(url)[0] == 200
        wait_until(lambda: ask(url, "GET", "/health")[0] == 500)
        database.write(damage, content)
        wait_until(lambda: ask(url, "GET", "/round")[1]["round"] == 1)
        assert ask(url, "GET", "/health") == (200, {"healthy": True})


# ---------------------------------------------------------------- one transaction for many requests


class Opened:
    """What the service does with a connection besides handing it on."""

    closed = 0

    def close(self):
        Opened.closed += 1


def test_a_connection_is_not_closed_while_it_works():
    """A worker that is stopped waits for the step that a cancelled task left behind."""
    begun, release, found = threading.Event(), threading.Event(), []

    def work(_database):
        begun.set()
        release.wait(30)
        found.append(Opened.closed)

    Opened.closed, connection = 0, Connection(Opened)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(connection.use, work)
        begun.wait(30)
        closing = pool.submit(connection.close)
        assert not wait([closing], 0.2).done
        release.set()
    assert (found, Opened.closed) == ([0], 1)


@pytest.fixture
def run(monkeypatch):
    """Runs requests whose transactions are ``work``."""

    def made(work, use):
        monkeypatch.setattr(intake, "answer", lambda database, study, *more: work(database, *more))

        async def main():
            commits = Commits(Opened, None)
            try:
                return await use(commits)
            finally:
                await commits.stop()

        return asyncio.run(main())

    return made


async def told(commits):
    """The answer, or the code of the rejection."""
    try:
        return await commits.submit(Probe())
    except Rejection as error:
        return error.code


def test_nobody_is_told_yes_before_the_commit(run):
    """What arrives during a transaction goes into the next."""
    sizes, release, begun = [], threading.Event(), threading.Event()

    def work(_database, requests, _refused):
        sizes.append(len(requests))
        begun.set()
        release.wait(30)
        return [None] * len(requests)

    async def use(commit):
        first = asyncio.create_task(commit.submit(Probe()))
        await asyncio.to_thread(begun.wait, 30)
        others = [asyncio.create_task(commit.submit(Probe())) for _ in range(50)]
        await asyncio.sleep(0)
        early = [task.done() for task in (first, *others)]
        release.set()
        return early, await asyncio.gather(first, *others)

    assert run(work, use) == ([False] * 51, [None] * 51)
    assert sizes == [1, 50]


def test_a_failed_commit_is_a_no_to_all(run, caplog):
    broken, counted = [True], Counter()

    def work(_database, requests, refused):
        if broken:
            raise DatabaseFailed("the disk is full")
        counted.update(refused)
        return [None] * len(requests)

    async def use(commit):
        commit.refused["malformed"] += 1
        first = await asyncio.gather(told(commit), told(commit))
        broken.clear()
        return first, await told(commit)

    Opened.closed = 0
    assert run(work, use) == (["storage"] * 2, None)
    assert counted == {"malformed": 1}  # counted later, not lost
    assert Opened.closed >= 2  # it connected anew
    assert "no report is accepted until this is solved: the database fails with DatabaseFailed" in caplog.text
    assert "the database works again" in caplog.text


def test_a_conflict_is_repeated_and_an_internal_error_is_a_no_and_not_the_end(run, caplog):
    tries = []

    def work(_database, requests, _refused):
        tries.append(len(requests))
        if len(tries) < 3:
            raise Conflict("another worker was quicker")
        if len(tries) == 4:
            raise ZeroDivisionError
        return [None] * len(requests)

    async def use(commit):
        return [await told(commit) for _ in range(3)]

    assert run(work, use) == [None, "storage", None]
    assert tries == [1] * 5
    assert "internal error" in caplog.text


# ---------------------------------------------------------------- workers


def test_a_worker_does_not_start_on_a_taken_port_or_with_another_study(alone, tmp_path):
    folder = alone[0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="cannot be listened on"):
            prepare(folder, "127.0.0.1", other.getsockname()[1])
    make(tmp_path / "two", users=24)
    (tmp_path / "two/study.toml").write_bytes((folder / "study.toml").read_bytes())
    with pytest.raises(ValueError, match="the database holds study"):
        prepare(tmp_path / "two", "127.0.0.1", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_neither_an_address_nor_the_time_of_a_report_is_logged(alone, number):
    """Reports leave no line at all: the log is the same however many there were, and whenever."""
    folder, first, second = alone
    with worker(folder) as running:
        before = running.log.read_text()
        for device in (first, second):
            assert device.send(running.url)[0] == 200
            assert device.send(running.url)[0] == 409
        place = urlsplit(running.url)
        for _ in range(3):
            with socket.create_connection((place.hostname, place.port)) as other:
                other.sendall(b"nonsense\r\n\r\n")
                other.recv(100)
        ask(running.url, "GET", "/nothing")
        assert running.log.read_text() == before
        running.process.send_signal(number)
        assert running.process.wait(60) in (0, 128 + number, -number)
        text = running.log.read_text()
    for words in ("Traceback", "127.0.0.1", "/report"):
        assert words not in text
