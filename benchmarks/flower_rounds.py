"""Measures rounds of a real federation on this machine, with Flower's SuperNode and with that of `sqsgd`.

`.venv/bin/python benchmarks/flower_rounds.py [--nodes 3 --rounds 6 --turns 1]`: federations of `sqsgd deploy`
(TLS, gate, authenticated nodes, MLP on MNIST). In turns, the nodes run `flower-supernode`, with a new process
for each message, and their own `run.sh`, with a warm process. Prints the median seconds of a round, without
the first, and the CPU seconds of all of a node's processes per message.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from sqsgd.deploy.live_state import read_state

BIN = Path(sys.executable).parent
TICKS = os.sysconf("SC_CLK_TCK")


def sqsgd(*arguments: object) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([BIN / "sqsgd", *map(str, arguments)], check=True, env=environment, capture_output=True)


def node_seconds(folder: Path) -> float:
    """CPU seconds of all processes of all nodes so far, those that have ended included."""
    parts, total = read_state(folder)["parts"], 0.0
    groups = {part["pid"] for name, part in parts.items() if name.startswith("node-")}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) in groups:
                total += sum(map(int, fields[11:15])) / TICKS
    return total


def measured(place: Path, warm: bool, nodes: int, rounds: int) -> tuple[list[float], float]:
    """Seconds of each round but the first, and CPU seconds per message in these rounds."""
    folder = place / "federation"
    sqsgd("deploy", "init", folder, "--nodes", nodes, "--rounds", rounds, "--model", "mlp")
    for path in folder.glob("nodes/*/run.sh"):
        if not warm:
            path.write_text(path.read_text().replace("python3 -m sqsgd.flower.supernode", "flower-supernode"))
    try:
        sqsgd("deploy", "up", folder, "--detach")
        marks = list[tuple[float, float]]()
        path = folder / "server/runs/run-1/metrics.jsonl"
        while len(marks) < rounds:
            done = len(path.read_text().splitlines()) if path.exists() else 0
            if done > len(marks):
                marks += [(time.monotonic(), node_seconds(folder))] * (done - len(marks))
            time.sleep(0.1)
        answers = sum(json.loads(line)["clients"] for line in path.read_text().splitlines()[1:])
        seconds = [json.loads(line)["seconds"] for line in path.read_text().splitlines()[1:]]
        time.sleep(3.0)  # the last children are counted when they have ended
        return seconds, (node_seconds(folder) - marks[0][1]) / answers
    finally:
        sqsgd("deploy", "down", folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    rounds: dict[bool, list[float]] = {False: [], True: []}
    messages: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.turns):
        for warm in (False, True):
            with TemporaryDirectory() as place:
                seconds, cpu = measured(Path(place), warm, options.nodes, options.rounds)
            rounds[warm] += seconds
            messages[warm].append(cpu)
            print(json.dumps({"warm": warm, "seconds": seconds, "cpu": cpu}), flush=True)
    print("| nodes | seconds per round (median) | CPU seconds per message |\n|---|---|---|")
    for warm in (False, True):
        middle, cpu = statistics.median(rounds[warm]), statistics.mean(messages[warm])
        print(f"| {'warm' if warm else 'cold'} | {middle:.1f} | {cpu:.2f} |")
    ratio = statistics.median(rounds[True]) / statistics.median(rounds[False])
    less = statistics.mean(messages[True]) / statistics.mean(messages[False])
    print(f"| ratio | {ratio:.2f} | {less:.2f} |")


if __name__ == "__main__":
    main()
