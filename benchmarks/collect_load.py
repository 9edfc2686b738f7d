"""How many reports a second a study's service takes, over real sockets of this machine.

    python benchmarks/collect_load.py                        # SQLite, one worker
    python benchmarks/collect_load.py --postgres --workers 2   # PostgreSQL, which it starts itself

Devices join with an invitation, encode a real report of 3,920 weights at epsilon 8 and send it: two requests
each. Afterwards the database must hold exactly the reports that were confirmed, byte by byte. The generator
runs on the same cores as the service. It is bounded: --reports and --connections.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/collect"))
from devices import invited, make, worker
from postgres_server import MISSING, postgres, programs

from sqsgd import Task, secure_rng
from sqsgd.core.task import Tasks
from sqsgd.federation.collect.rounds import opened

DIM = 3920


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

    async def ask(self, path, body, headers=b""):
        """The status and the body of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\n%scontent-length: %d\r\n\r\n%s"
            % (path, headers, len(body), body)
        )
        return await self._answer

    def close(self):
        """End the connection."""
        self._transport.close()


class Encoder:
    """Encodes what waits all at once: devices have processors of their own, the generator has half of one."""

    def __init__(self, scheme, rows) -> None:
        self._scheme, self._rows, self._waiting, self._due = scheme, rows, [], False

    async def message(self, task):
        """The report for a task."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((task, future))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._encode)
        return await future

    def _encode(self):
        waiting, self._waiting, self._due = self._waiting, [], False
        for round in {task["round"] for task, _ in waiting}:
            these = [(task, future) for task, future in waiting if task["round"] == round]
            tasks = Tasks(Task(**these[0][0]), [task["client"] for task, _ in these])
            x = self._rows[np.random.default_rng(0).integers(len(self._rows), size=len(these))]
            for row, (_, future) in zip(self._scheme.encode_many(x, tasks, secure_rng()), these, strict=True):
                future.set_result(row.tobytes())


async def device(connection, study, invitation, encoder, times):
    """One device, from the invitation to the confirmation; returns its round, slot and message."""
    ticket = secrets.token_hex(32)
    asked = json.dumps({"study": study.id, "ticket": ticket, "invitation": invitation}).encode()
    while True:
        started = time.perf_counter()
        status, body = await connection.ask(b"/join", asked)
        if status == 503:  # between two rounds
            await asyncio.sleep(0.02)
            continue
        times["join"].append(time.perf_counter() - started)
        if status != 200:
            raise ValueError(f"{status}: {body!r}")
        break
    task = json.loads(body)["task"]
    message = await encoder.message(task)
    started = time.perf_counter()
    status, body = await connection.ask(
        b"/report", message, b"authorization: Bearer %s\r\n" % ticket.encode()
    )
    times["report"].append(time.perf_counter() - started)
    if status != 200 or json.loads(body)["again"]:
        raise ValueError(f"{status}: {body!r}")
    return task["round"], task["client"], message


async def load(urls, study, invitations, connections):
    """All devices, so many at a time; returns the confirmed reports, the times and the seconds."""
    rows = np.random.default_rng(1).normal(size=(256, DIM)).astype(np.float32)
    encoder = Encoder(study.made_scheme, rows)
    await asyncio.wait_for(
        asyncio.gather(*(encoder.message(vars(task_of(study, i))) for i in range(connections))), 60
    )  # compiled before the clock starts
    waiting, confirmed = deque(invitations), []
    times = {"join": [], "report": []}
    loop = asyncio.get_running_loop()

    async def one_after_the_other(i):
        host, port = urls[i % len(urls)].removeprefix("http://").split(":")
        _, connection = await loop.create_connection(Connection, host, int(port))
        while waiting:
            confirmed.append(await device(connection, study, waiting.popleft(), encoder, times))
        connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(one_after_the_other(i) for i in range(connections)))
    return confirmed, times, time.perf_counter() - started


def task_of(study, slot):
    """A task of round 0."""
    return Task(round=0, client=slot, seed=study.seed, dim=study.dim, bound=study.bound)


def verify(folder, confirmed):
    """Compare what was confirmed with what the database holds, byte by byte, and with what was averaged."""
    with opened(folder) as (_, database):
        stored = database.read("SELECT round, slot, report FROM slots WHERE report IS NOT NULL")
        used = database.read("SELECT count(*) FROM invitations")[0][0]
        records = database.read("SELECT round, record FROM rounds WHERE record IS NOT NULL")
    kept = {(round, slot): bytes(report) for round, slot, report in stored}
    counted = sum(json.loads(record)["clients"] for _, record in records)
    over = {round for round, _ in records}
    return {
        "rounds_averaged": len(records),
        "lost": sum(kept.get((round, slot)) != message for round, slot, message in confirmed),
        "stored_twice": len(kept) - len({place[:2] for place in confirmed}),
        "averaged_twice": counted - sum(round in over for round, _, _ in confirmed),
        "invitations_used": used,
    }


def processor_seconds(process):
    """The processor time that a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(*, reports, connections, workers, slots, url=""):
    """Run the load against new workers; returns what is printed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "study"
        rounds = reports // slots + 2  # the study does not end
        study = make(folder, url, dim=DIM, users=slots * rounds, rounds=rounds, bytes=48, softmax=True)
        invitations = invited(folder, study, reports)
        running = [stack.enter_context(worker(folder)) for _ in range(workers)]
        before, own = sum(processor_seconds(each.process) for each in running), time.process_time()
        urls = [each.url for each in running]
        confirmed, times, seconds = asyncio.run(load(urls, study, invitations, connections))
        own = time.process_time() - own
        busy = sum(processor_seconds(each.process) for each in running) - before
        time.sleep(2)  # the last full round is averaged
        found = verify(folder, confirmed)
    milliseconds = {
        f"{name}_p{share}_ms": round(1000 * float(np.percentile(values, share)), 1)
        for name, values in times.items()
        for share in (50, 99)
    }
    return {
        "database": "postgresql" if url else "sqlite",
        "workers": workers,
        "connections": connections,
        "reports": len(confirmed),
        "seconds": round(seconds, 1),
        "reports_per_second": round(len(confirmed) / seconds),
        **milliseconds,
        "worker_cpu_ms_per_report": round(1000 * busy / len(confirmed), 2),
        "generator_cpu_ms_per_report": round(1000 * own / len(confirmed), 2),
        **found,
    }


def main() -> None:
    """Print the measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reports", type=int, default=30000)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--slots", type=int, default=5000, help="of a round")
    parser.add_argument("--postgres", action="store_true")
    chosen = parser.parse_args()
    sizes = {name: getattr(chosen, name) for name in ("reports", "connections", "workers", "slots")}
    if not chosen.postgres:
        print(json.dumps(measure(**sizes), indent=2))
        return
    if programs() is None:
        sys.exit(MISSING)
    with postgres() as server:
        print(json.dumps(measure(**sizes, url=server.new_url("load")), indent=2))


if __name__ == "__main__":
    main()
