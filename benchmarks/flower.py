"""Measures sqsgd on Flower: memory of a large simulation, and bytes on the wire of a real deployment.

`.venv/bin/python benchmarks/flower.py memory [--clients 1000 --participation 50 --rounds 5]`: the peak memory
of all processes together (shared pages counted once) while LeNet-5 trains over Flower's simulation.
`.venv/bin/python benchmarks/flower.py wire [--rounds 4 --nodes 2]`: the bytes through the socket of one node,
counted by a proxy.
"""

import argparse
import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from sqsgd.federation.deploy import node
from sqsgd.federation.deploy.node import free_port
from sqsgd.flower import app_folder

BIN = Path(sys.executable).parent
QUIET = {
    **node.QUIET,
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "RAY_USAGE_STATS_ENABLED": "0",
}


# ---------------------------------------------------------------- memory


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def memory(processes: list[int]) -> int:
    """Bytes that the processes hold together; shared pages count once."""
    total = 0
    for process in processes:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        total += 1024 * int(found[1]) if found else 0
    return total


def measure_memory(clients: int, participation: int, rounds: int) -> None:
    with TemporaryDirectory() as folder:
        command = [
            sys.executable, "-c", "from sqsgd.cli import main; main()", "train",
            "--engine", "flower", "--json",
            "--clients", str(clients), "--participation", str(participation), "--rounds", str(rounds),
            "--out", f"{folder}/run",
        ]  # fmt: skip
        log = Path(folder, "log")
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            peak = 0
            while process.poll() is None:
                peak = max(peak, memory(tree(process.pid)))
                time.sleep(0.5)
        if process.returncode:
            sys.exit(log.read_text())
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        kept = sum(
            path.stat().st_size for path in Path(folder, "run", "clients").rglob("*") if path.is_file()
        )
    seconds = sorted(line["seconds"] for line in lines)
    print(f"{clients} virtual clients, {participation} per round, {rounds} rounds")
    print(f"peak memory of all processes {peak / 2**30:.2f} GiB (target: at most 24)")
    print(
        f"a round {seconds[len(seconds) // 2]:.1f} s (median); clients' state on disk {kept / 2**20:.0f} MiB"
    )
    print(f"a report {lines[-1]['bytes_up']} bytes")


# ---------------------------------------------------------------- the wire


class Counting(socketserver.ThreadingTCPServer):
    """Forwards connections to a port, and counts bytes by direction and by the request's path."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, target: int) -> None:
        self.target, self.counts = target, Counter()
        super().__init__(("127.0.0.1", 0), Passing)


class Passing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.path = "?"
        try:
            other = socket.create_connection(("127.0.0.1", self.server.target))
        except OSError:  # the SuperLink has ended before its node
            return
        with other:
            back = threading.Thread(target=self.pass_on, args=(other, self.request, "down"), daemon=True)
            back.start()
            self.pass_on(self.request, other, "up")
            back.join(5)

    def pass_on(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while content := source.recv(65536):
                started = re.match(rb"(?:POST|GET|PUT) (\S+) HTTP", content)
                if direction == "up" and started:
                    self.path = re.sub(r"[0-9a-f]{16,}", "ID", started[1].decode())
                self.server.counts[direction, self.path] += len(content)
                self.server.counts["requests", self.path] += bool(started)
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def measure_wire(rounds: int, nodes: int) -> None:
    with TemporaryDirectory() as folder:
        port, work = free_port(), Path(folder)
        environment = {**os.environ, **QUIET, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": folder}
        (work / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        started: list[subprocess.Popen[bytes]] = []

        def start(name: str, *arguments: str) -> None:
            with (work / f"{name}.log").open("w") as log:
                started.append(
                    subprocess.Popen(
                        [BIN / arguments[0], *arguments[1:]], env=environment, stdout=log, stderr=log
                    )
                )

        try:
            start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
                  "--disable-runtime-dependency-installation")  # fmt: skip
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            proxy = Counting(port)
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            for node in range(nodes):
                through = port if node else proxy.server_address[1]
                start(f"node{node}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{through}",
                      "--port", str(free_port()), "--node-config",
                      f'partition-id={node} num-partitions={nodes} max-epsilon=100000.0 '
                      f'state-dir="{work}/state{node}"')  # fmt: skip
            settings = f"num-server-rounds={rounds} out='{work}/run' round-timeout=300.0 min-nodes={nodes}"
            subprocess.run(
                [BIN / "flwr", "run", str(app_folder()), "here", "--stream", "--run-config", settings],
                env=environment, check=True, capture_output=True, timeout=1800,
            )  # fmt: skip
            counts = Counter(proxy.counts)
            proxy.shutdown()
            proxy.server_close()
        finally:
            for process in reversed(started):  # nodes first
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait(60)
        lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    print(f"{rounds} rounds, one of {nodes} nodes; the app's code is sent once")
    for line in lines:
        sizes = " ".join(f"{name} {line[name]:,}" for name in line if name.startswith("bytes_"))
        print(f"  round {line['round']}: {sizes} seconds {line['seconds']:.1f}")
    for path in sorted({path for _, path in counts}, key=lambda path: -counts["down", path]):
        requests, up, down = (counts[kind, path] for kind in ("requests", "up", "down"))
        print(f"  {path:42} requests {requests:5,} up {up:9,} down {down:9,}")
    for direction in ("up", "down"):
        whole = sum(count for (kind, _), count in counts.items() if kind == direction)
        print(f"  wire, {direction}: {whole:,} bytes in all, {whole / rounds:,.0f} a round")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["memory", "wire"])
parser.add_argument("--clients", type=int, default=1000)
parser.add_argument("--participation", type=int, default=50)
parser.add_argument("--rounds", type=int, default=0)
parser.add_argument("--nodes", type=int, default=2)
if __name__ == "__main__":
    wanted = parser.parse_args()
    if wanted.what == "memory":
        measure_memory(wanted.clients, wanted.participation, wanted.rounds or 5)
    else:
        measure_wire(wanted.rounds or 4, wanted.nodes)
