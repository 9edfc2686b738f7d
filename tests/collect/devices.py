"""Real devices and workers for tests: processes, threads, sockets on the loopback, reports of the scheme."""

import contextlib
import http.client
import json
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

from sqsgd import Task, secure_rng
from sqsgd.federation.collect.database import open_database
from sqsgd.federation.collect.intake import Accepted, Granted, Join, Report, answer, task_of
from sqsgd.federation.collect.rounds import create_study
from sqsgd.federation.collect.service import prepare
from sqsgd.federation.collect.study import KEY, invitations, read_key


def make(folder, url="", **values):
    """A small study with zero weights."""
    arrays = {"weights": np.zeros(values.pop("dim", 16), np.float32)}
    settings = {"name": "test", "users": 12, "rounds": 3, "epsilon": 8.0, "bytes": 8, **values}
    return create_study(folder, arrays, settings, url)


def invited(folder, study, count):
    """Invitations of the operator."""
    return list(invitations(read_key(folder / KEY, study.key), study.id, count))


def new_ticket():
    return secrets.token_hex(32)


def at_once(count, work):
    """The results of ``work(i)`` in threads that begin at the same moment."""
    start = threading.Barrier(count)

    def one(i):
        start.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def wait_until(condition, seconds=120):
    """Until a condition holds; the deadline is for a test that fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def served(folder):
    """The address of a service in a thread, for what needs no process of its own."""
    server, listener, url = prepare(folder, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield url
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


@contextlib.contextmanager
def worker(folder):
    """A worker in a process of its own, on a port that the system chose; killed at the end by its id."""
    command = [sys.executable, "-m", "sqsgd", "collect", "serve", str(folder), "--port", "0"]
    log = folder / f"worker-{secrets.token_hex(4)}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("listening"), f"{line}{log.read_text()}"
        yield Worker(process=process, url=line.split()[1], log=log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@dataclass
class Worker:
    """A running worker."""

    process: subprocess.Popen
    url: str
    log: object


class Asking:
    """A study, its database, and requests of devices without a service in between."""

    def __init__(self, folder, url="", **values):
        self.study = make(folder, url, **values)
        self.folder, self.database, self.shift = folder, open_database(folder), 0.0
        now = self.database.now
        self.database.now = lambda: now() + self.shift  # time passes when the test says so

    def __call__(self, *requests, database=None, refused=None):
        return answer(database or self.database, self.study, requests, refused or Counter())

    def join(self, ticket=None, invitation=None):
        ticket, invitation = ticket or new_ticket()[:32], invitation or new_ticket()[:32]
        return self(Join(ticket, invitation))[0]

    def message(self, granted, value=1.0):
        x = np.full(self.study.dim, value, np.float32)
        return self.study.made_scheme.encode(x, task_of(self.study, granted, granted.slot), secure_rng())

    def joined(self, count):
        """New devices: what they were granted, and reports that they have not sent."""
        tickets = [new_ticket()[:32] for _ in range(count)]
        granted = [self.join(ticket) for ticket in tickets]
        assert all(isinstance(each, Granted) for each in granted), granted
        return granted, [
            Report(ticket=t, message=self.message(g)) for t, g in zip(tickets, granted, strict=True)
        ]

    def fill(self, count=None):
        """Reports of the current round; returns them as the server's step takes them."""
        granted, reports = self.joined(self.study.slots if count is None else count)
        assert all(isinstance(given, Accepted) for given in self(*reports))
        made = [
            (task_of(self.study, g, g.slot), r.message, 1.0) for g, r in zip(granted, reports, strict=True)
        ]
        return sorted(made, key=lambda report: report[0].client)


def ask(url, method, path, body=b"", headers=None, timeout=30):
    """One request on a connection of its own: the status, and the JSON or the bytes of the answer."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=timeout)
    try:
        connection.request(method, path, body or None, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        kind = answer.headers.get("content-type", "")
        return answer.status, json.loads(content) if kind.startswith("application/json") else content
    finally:
        connection.close()


@dataclass
class Device:
    """A device that keeps what it needs to repeat a request, and makes one report."""

    study: object
    invitation: str | None = None
    ticket: str = field(default_factory=new_ticket)
    task: Task | None = None
    message: bytes | None = None

    def join(self, url):
        """Ask for a slot."""
        asked = {"study": self.study.id, "ticket": self.ticket}
        if self.invitation is not None:
            asked["invitation"] = self.invitation
        status, answer = ask(url, "POST", "/join", json.dumps(asked).encode())
        if status == 200:
            self.task = Task(**answer["task"])
        return status, answer

    def encode(self, gradient=None):
        """The report, made once."""
        if self.message is None:
            x = np.ones(self.study.dim, np.float32) if gradient is None else gradient
            self.message = self.study.made_scheme.encode(x, self.task, secure_rng())
        return self.message

    def send(self, url, message=None):
        """Send the report."""
        headers = {"authorization": f"Bearer {self.ticket}"}
        return ask(url, "POST", "/report", self.encode() if message is None else message, headers)

    def whole(self, url):
        """Join and report, as often as it takes; returns the last answer."""
        return persist(lambda: self.join(url)) and persist(lambda: self.send(url))


def persist(request, seconds=60):
    """Repeat a request while the service is away, busy or between rounds."""
    end = time.monotonic() + seconds
    while True:
        try:
            status, answer = request()
        except (OSError, http.client.HTTPException):
            status, answer = 0, None
        if status not in (0, 503) or time.monotonic() > end:
            return status, answer
        time.sleep(0.02)
