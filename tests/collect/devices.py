"""Real devices and real workers for tests: processes, sockets on the loopback, reports of the real scheme."""

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

from sqsgd import Task, secure_rng
from sqsgd.federation.collect.rounds import create_study, flat
from sqsgd.federation.collect.study import KEY, invitations, read_key

DIM = 16


def make(folder, url="", **values):
    """A small study with zero weights."""
    weights, names = flat({"weights": np.zeros(values.pop("dim", DIM), np.float32)})
    settings = {"name": "test", "users": 12, "rounds": 3, "epsilon": 8.0, "bytes": 8, **values}
    return create_study(folder, weights, names, settings, url)


def invited(folder, study, count):
    """Invitations of the operator."""
    return list(invitations(read_key(folder / KEY, study.key), study.id, count))


def new_ticket():
    return secrets.token_hex(32)


@contextlib.contextmanager
def worker(folder, *options, environment=None):
    """A worker in a process of its own, on a port that the system chose; killed at the end by its id."""
    command = [sys.executable, "-m", "sqsgd", "collect", "serve", str(folder), "--port", "0", *options]
    log = folder / f"worker-{secrets.token_hex(4)}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
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

    def ask(self, method, path, body=b"", headers=None, timeout=30):
        """The status and the answer to one request."""
        return ask(self.url, method, path, body, headers, timeout)


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
