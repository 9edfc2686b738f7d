"""The service: what devices are told, over real sockets, and that nobody is told yes before the commit."""

import asyncio
import http.client
import json
import re
import resource
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from devices import Device, ask, invited, make, persist, served, wait_until, worker

from sqsgd.federation import collect
from sqsgd.federation.collect.database import Conflict, DatabaseFailed
from sqsgd.federation.collect.intake import CODES, Accepted, Probe, Rejection
from sqsgd.federation.collect.rounds import opened
from sqsgd.federation.collect.service import GroupCommit, Service, prepare

ACCEPTED = (200, {"accepted": True, "round": 0, "again": False})


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


@pytest.fixture
def alone(tmp_path):
    """The folder of a small study, and two of its devices."""
    folder = tmp_path / "study"
    study = make(folder)
    return folder, *(Device(study, invitation) for invitation in invited(folder, study, 2))


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
    assert device.send(url) == ACCEPTED
    assert device.send(url) == (200, {"accepted": True, "round": 0, "again": True})
    status, answer = ask(url, "GET", "/study")
    assert study.public().items() <= answer.items()
    assert (status, answer["round"], answer["state"]) == (200, 0, "open")


def test_a_forged_and_a_used_invitation_and_another_study(running, device, tmp_path):
    study, _, url = running
    assert code(Device(study, "A" * 118).join(url)) == (403, "invitation-invalid")
    assert code(Device(study, None).join(url)) == (403, "invitation-invalid")
    assert device.join(url)[0] == 200
    assert code(Device(study, device.invitation).join(url)) == (409, "invitation-used")
    other = make(tmp_path / "other")
    (invitation,) = invited(tmp_path / "other", other, 1)
    assert code(Device(other, invitation).join(url)) == (404, "wrong-study")
    status, body = Device(study, invitation).join(url)
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


def test_a_body_too_long_or_too_slow_or_broken_off(running):
    url = urlsplit(running[2])
    begun = b"POST /join HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    assert code(ask(running[2], "POST", "/join", b" " * 2000)) == (413, "too-long")
    with socket.create_connection((url.hostname, url.port), timeout=30) as slow:
        slow.sendall(begun)
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        assert (answer.status, json.loads(answer.read())["error"]) == (408, "too-slow")
    with socket.create_connection((url.hostname, url.port), timeout=30) as gone:
        gone.sendall(begun)
    assert ask(running[2], "GET", "/health") == (200, {"healthy": True})


def test_places_that_do_not_exist_and_counters(running):
    study, folder, url = running
    for round in ("1", "9" * 20, "9" * 5000, "-1", "00", "x", "\u0661"):
        path = f"/model/{study.id}/{quote(round)}"
        assert code(ask(url, "GET", path)) == (404, "not-found")
    assert code(ask(url, "GET", f"/model/{'0' * 16}/0")) == (404, "wrong-study")
    for path in ("/nothing/../../study.toml", "/operator.key"):
        assert ask(url, "GET", path)[0] == 404
    assert ask(url, "GET", "/") == (200, b"<title>A study</title>")  # the study's page
    for method, path in (("GET", "/join"), ("POST", "/study")):
        assert code(ask(url, method, path)) == (405, "wrong-method")

    def counted():
        with opened(folder) as (_, database):
            return dict(database.read("SELECT code, count FROM refusals")).get("wrong-method", 0)

    wait_until(lambda: counted() >= 2)


def test_a_full_disk_refuses_and_then_goes_on(alone):
    """The system refuses to let the worker's files grow, and later lets them."""
    folder, first, second = alone
    with worker(folder) as running:
        assert first.join(running.url)[0] == 200
        before = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
        size = (folder / "collect.db-wal").stat().st_size
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (size, before[1]))
        assert code(first.send(running.url)) == (503, "storage")
        assert code(second.join(running.url)) == (503, "storage")
        assert "no report is accepted until this is solved" in running.log.read_text()
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, before)
        assert first.send(running.url) == ACCEPTED
        assert second.whole(running.url)[0] == 200


def test_a_database_that_is_gone(alone, caplog):
    folder, device, _ = alone
    with served(folder) as url:
        device.join(url)
        (folder / "collect.db").rename(folder / "elsewhere.db")
        assert code(device.send(url)) == (503, "storage")
        assert code(ask(url, "GET", "/health")) == (503, "storage")
        (folder / "elsewhere.db").rename(folder / "collect.db")
        assert persist(lambda: device.send(url)) == ACCEPTED
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
        assert persist(lambda: device.send(url)) == ACCEPTED


def test_every_refusal_has_a_status_and_says_what_to_do():
    for status, what_to_do in CODES.values():
        assert 400 <= status < 600
        assert what_to_do
    # Encoding again draws new noise for the same data, which is a second report.
    assert CODES["malformed"][1].startswith("do not encode again")
    text = "".join(path.read_text() for path in Path(collect.__file__).parent.glob("*.py"))
    assert set(re.findall(r'(?:Rejection\(|\.count\()\s*"([a-z-]+)"', text)) == set(CODES)


# ---------------------------------------------------------------- one transaction for many requests

YES = Accepted(round=0, again=False)


class Connection:
    """What GroupCommit does with a connection besides handing it on."""

    closed = 0

    def close(self):
        Connection.closed += 1


def run(work, use):
    async def main():
        commit = GroupCommit(Connection, work)
        try:
            return await use(commit)
        finally:
            await asyncio.to_thread(commit.stop)

    return asyncio.run(main())


async def told(commit):
    """The answer, or the code of the rejection."""
    try:
        return await commit.submit(Probe())
    except Rejection as error:
        return error.code


def test_nobody_is_told_yes_before_the_commit():
    """What arrives during a transaction goes into the next."""
    sizes, release, begun = [], threading.Event(), threading.Event()

    def work(_database, requests, _refused):
        sizes.append(len(requests))
        begun.set()
        release.wait(30)
        return [YES] * len(requests)

    async def use(commit):
        first = asyncio.create_task(commit.submit(Probe()))
        await asyncio.to_thread(begun.wait, 30)
        others = [asyncio.create_task(commit.submit(Probe())) for _ in range(50)]
        await asyncio.sleep(0)
        early = [task.done() for task in (first, *others)]
        release.set()
        return early, await asyncio.gather(first, *others)

    assert run(work, use) == ([False] * 51, [YES] * 51)
    assert sizes == [1, 50]


def test_a_failed_commit_is_a_no_to_all(caplog):
    broken, counted = [True], Counter()

    def work(_database, requests, refused):
        if broken:
            raise DatabaseFailed("the disk is full")
        counted.update(refused)
        return [YES] * len(requests)

    async def use(commit):
        commit.count("malformed")
        first = await asyncio.gather(told(commit), told(commit))
        broken.clear()
        return first, await told(commit)

    Connection.closed = 0
    assert run(work, use) == (["storage"] * 2, YES)
    assert counted == {"malformed": 1}  # counted later, not lost
    assert Connection.closed >= 2  # it connected anew
    assert "no report is accepted until this is solved: the disk is full" in caplog.text
    assert "the database works again" in caplog.text


def test_a_conflict_is_repeated_and_an_internal_error_is_a_no_and_not_the_end(caplog):
    tries = []

    def work(_database, requests, _refused):
        tries.append(len(requests))
        if len(tries) < 3:
            raise Conflict("another worker was quicker")
        if len(tries) == 4:
            raise ZeroDivisionError
        return [YES] * len(requests)

    async def use(commit):
        return [await told(commit) for _ in range(3)]

    assert run(work, use) == [YES, "storage", YES]
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
            assert device.whole(running.url)[0] == 200
            assert Device(device.study, device.invitation).join(running.url)[0] == 409
        ask(running.url, "GET", "/nothing")
        assert running.log.read_text() == before
        running.process.send_signal(number)
        assert running.process.wait(60) in (0, 128 + number, -number)
        text = running.log.read_text()
    for words in ("Traceback", "127.0.0.1", "/report"):
        assert words not in text
