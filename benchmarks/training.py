"""Private training against FedSGD in one process: the same model and batches, in alternating rounds.

Targets: wall time at most 1.15 x, and encode + decode + aggregate at most 10 % of a private round.
Run it on a quiet machine: `.venv/bin/python benchmarks/training.py [--rounds 60]`.
"""

import argparse
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sqsgd import training
from sqsgd.runs import train as runner
from sqsgd.training.settings import make_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=60)
parser.add_argument("--model", default="lenet5")
rounds = parser.parse_args().rounds
model = parser.parse_args().model

with TemporaryDirectory() as folder:
    steps = {}
    for scheme in ("fedsgd", "sqsgd"):
        # One worker: with more, gradients overlap with encoding, and its share cannot be measured.
        config = make_config({"scheme": scheme, "model": model, "rounds": rounds, "workers": 1})
        run = runner.prepare(config, Path(folder) / scheme)
        state = training.initial_state(run.problem.initial(), run.settings)
        steps[scheme] = training.run(run.problem, run.scheme, run.settings, state, rounds)
    records = {scheme: [] for scheme in steps}
    for _ in range(rounds):
        for scheme, rounds_of in steps.items():
            records[scheme].append(next(rounds_of)[0])

warm = {scheme: taken[5:] for scheme, taken in records.items()}  # the first rounds compile
seconds = {scheme: statistics.median(r.seconds for r in taken) for scheme, taken in warm.items()}
private = warm["sqsgd"]
overhead = statistics.median((r.seconds_encode + r.seconds_aggregate) / r.seconds for r in private)
ratio = seconds["sqsgd"] / seconds["fedsgd"]
print(f"round: fedsgd {1e3 * seconds['fedsgd']:.1f} ms, sqsgd {1e3 * seconds['sqsgd']:.1f} ms")
print(f"sqsgd / fedsgd {ratio:.3f} (target <= 1.15); encode and aggregate {overhead:.1%} (target <= 10 %)")
sys.exit(0 if ratio <= 1.15 and overhead <= 0.10 else 1)
