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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sqsgd import secure_rng
from sqsgd.federation.collect import tokens
from sqsgd.federation.collect.database import open_database
from sqsgd.federation.collect.intake import answer, read_report, task_of
from sqsgd.federation.collect.rounds import create_study
from sqsgd.federation.collect.service import prepare
from sqsgd.federation.collect.study import KEY, invitations, read_key
from sqsgd.federation.collect.tokens import base64url


def make(folder, url="", **values):
    """A small study with zero weights, in which a round ends when it is full."""
    arrays = {"weights": np.zeros(values.pop("dim", 16), np.float32)}
    few = {"name": "test", "users": 12, "rounds": 3, "epsilon": 8.0, "bytes": 8, "visits": "once"}
    return create_study(folder, arrays, {**few, **values}, url)


@lru_cache(maxsize=8)
def _issuer(path):
    return load_pem_private_key(Path(path).read_bytes(), None)


def token(folder, study):
    """A token as a device has it, signed in one step: blinding would take a hundred times as long."""
    text = study.tokens.input(tokens.challenge(study.id), secrets.token_bytes(32))
    scheme = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    return text + _issuer(str(folder / tokens.KEY)).sign(text, scheme, hashes.SHA384())


def invited(folder, study, count):
    """Invitations of the operator."""
    return list(invitations(read_key(folder / KEY, study.key), study.id, count))


def ones(weights):
    return np.full(weights.size, 0.1, np.float32)


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

    def message(self, round=0, value=0.1):
        x = np.full(self.study.dim, value, np.float32)
        return self.study.made_scheme.encode(x, task_of(self.study, round), secure_rng())

    def report(self, round=0, message=None):
        """A report with a token that was not spent."""
        return read_report(self.study, secrets.token_hex(32), round, message or self.message(round))

    def fill(self, round=0, count=None):
        """Reports of a round; returns them as the server's step takes them."""
        messages = [self.message(round) for _ in range(self.study.expected if count is None else count)]
        given = self(*(self.report(round, message) for message in messages)) if messages else []
        assert given == [None] * len(messages)
        return [(task_of(self.study, round), message, 1.0) for message in messages]


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


class Reporter:
    """A device that has a token, makes one report and can repeat it."""

    def __init__(self, folder, study):
        self.study, self.token = study, token(folder, study)
        self.message, self.round = None, None

    def body(self, round=0, message=None):
        """The report, made once."""
        if self.message is None:
            x, self.round = np.full(self.study.dim, 0.1, np.float32), round
            self.message = self.study.made_scheme.encode(x, task_of(self.study, round), secure_rng())
        parts = {"token": base64url(self.token), "report": base64url(message or self.message)}
        return json.dumps({"study": self.study.id, "round": self.round, **parts}).encode()

    def send(self, url, round=0, message=None):
        return ask(url, "POST", "/report", self.body(round, message), {"content-type": "application/json"})


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
