"""How many reports a second a study's service takes, over real sockets of this machine.

    python benchmarks/collect_load.py                        # SQLite, one worker
    python benchmarks/collect_load.py --relay                # sealed, through relay and front (nginx)
    python benchmarks/collect_load.py --postgres --workers 2   # PostgreSQL, started here; or with --relay

Tokens and reports of 3,920 weights are made, and sealed, beforehand. Afterwards the database must hold the
counts of exactly the reports that were confirmed. The generator runs on the same cores as the service. It
is bounded: --reports and --connections.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/collect"))
from devices import ask, base64url, make, token, worker
from postgres_server import MISSING, postgres, programs
from test_relay import FRONT, RELAY, free_port, nginx

from sqsgd import secure_rng
from sqsgd.federation.collect import oblivious
from sqsgd.federation.collect.intake import counts, task_of
from sqsgd.federation.collect.rounds import opened

DIM = 3920
JSON = {"content-type": "application/json"}


class Connection(asyncio.Protocol):
    """A connection that is kept open, for one request after the other."""

    def __init__(self) -> None:
        self._data, self._answer = bytearray(), None

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._data += data
        head, end, body = bytes(self._data).partition(b"\r\n\r\n")
        if end:
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(body) >= length:
                self._data.clear()
                self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, error):
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the connection ended: {error}"))

    async def ask(self, path, body, kind="application/json"):
        """The status and the body of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return await self._answer

    def close(self):
        """End the connection."""
        self._transport.close()


def bodies(folder, study, round, messages):
    """What devices send: the reports, each with a token that was not spent."""
    for message in messages:
        parts = {"token": base64url(token(folder, study)), "report": base64url(message)}
        whole = {"study": study.id, "round": round, **parts}
        yield json.dumps(whole, separators=(",", ":")).encode()


def sealed(study, keys, body):
    """A report as the relay gets it, and how to open the answer."""
    asked = oblivious.Request("POST", "/report", JSON, body)
    return oblivious.encapsulate(keys, oblivious.pack_request(asked, study.request_bytes))


def status_of(answer, opened_by):
    """The status that the device is told."""
    status, body = answer
    return oblivious.read_answer(opened_by(body)).status if opened_by and status == 200 else status


async def load(urls, path, kind, requests, connections):
    """All requests, so many at a time; returns answers, times and the seconds."""
    waiting, answers, times = deque(enumerate(requests)), [None] * len(requests), []
    loop = asyncio.get_running_loop()

    async def one_after_the_other(i):
        host, port = urls[i % len(urls)].removeprefix("http://").split(":")
        _, connection = await loop.create_connection(Connection, host, int(port))
        while waiting:
            number, request = waiting.popleft()
            started = time.perf_counter()
            answers[number] = await connection.ask(path, request, kind)
            times.append(time.perf_counter() - started)
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(one_after_the_other(i) for i in range(connections)))
    return answers, times, time.perf_counter() - started


def processor_seconds(process):
    """The processor time that a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(*, reports, connections, workers, relay, url=""):
    """Run the load against new workers; returns what is printed."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = place / "study"
        study = make(folder, url, dim=DIM, users=2 * reports + 2, rounds=2, bytes=48, softmax=True)
        rows = np.random.default_rng(1).normal(size=(reports, DIM)).astype(np.float32)
        scheme, tasks = study.made_scheme, study.made_scheme.tasks(0, [0] * reports, study.seed, study.bound)
        messages = [row.tobytes() for row in scheme.encode_many(rows, tasks, secure_rng())]
        requests, openers = list(bodies(folder, study, 0, messages)), [None] * reports
        running = [stack.enter_context(worker(folder)) for _ in range(workers)]
        urls, path, kind = [each.url for each in running], "/report", JSON["content-type"]
        if relay:
            servers = "".join(f"server {each.removeprefix('http://')}; " for each in urls)
            text = FRONT.replace("server 127.0.0.1:8080; ", servers)
            front = stack.enter_context(nginx(place / "front", text, urls[0], free_port()))
            urls = [stack.enter_context(nginx(place / "relay", RELAY, front, free_port()))]
            keys = ask(urls[0], "GET", "/digits")[1]
            requests, openers = zip(*(sealed(study, keys, body) for body in requests), strict=True)
            path, kind = "/digits", oblivious.REQUEST
        before, own = sum(processor_seconds(each.process) for each in running), time.process_time()
        answers, times, seconds = asyncio.run(load(urls, path, kind, requests, connections))
        own = time.process_time() - own
        busy = sum(processor_seconds(each.process) for each in running) - before
        told = [status_of(answer, opener) for answer, opener in zip(answers, openers, strict=True)]
        expected = np.zeros(scheme.symbols, np.int64)
        for message, status in zip(messages, told, strict=True):
            np.add.at(expected, scheme.open(message, task_of(study, 0))[0], status == 200)
        with opened(folder) as (_, database):
            difference = counts(database, study, 0) - expected
    return {
        "database": "postgresql" if url else "sqlite",
        "through": "relay, front and gateway" if relay else "nothing",
        "workers": workers,
        "connections": connections,
        "reports": told.count(200),
        "refused": len(told) - told.count(200),
        "seconds": round(seconds, 1),
        "reports_per_second": round(told.count(200) / seconds),
        **{f"p{share}_ms": round(1000 * float(np.percentile(times, share)), 1) for share in (50, 99)},
        "worker_cpu_ms_per_report": round(1000 * busy / reports, 2),
        "generator_cpu_ms_per_report": round(1000 * own / reports, 2),
        "confirmed_and_lost": int(-difference[difference < 0].sum()),
        "counted_and_not_confirmed": int(difference[difference > 0].sum()),
    }


def main() -> None:
    """Print the measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reports", type=int, default=20000)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--postgres", action="store_true")
    chosen = parser.parse_args()
    sizes = {name: getattr(chosen, name) for name in ("reports", "connections", "workers", "relay")}
    if not chosen.postgres:
        print(json.dumps(measure(**sizes), indent=2))
        return
    if programs() is None:
        sys.exit(MISSING)
    with postgres() as server:
        print(json.dumps(measure(**sizes, url=server.new_url("load")), indent=2))


if __name__ == "__main__":
    main()
