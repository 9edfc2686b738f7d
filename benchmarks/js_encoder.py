"""Whether the JavaScript client encodes as Python does: random vectors, the same private words, equal bytes.

    make js && python benchmarks/js_encoder.py --vectors 100000

Draws a scheme, its parameters, tasks, vectors of many kinds and private words, encodes them here and in Node,
and compares the messages. Exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from sqsgd.core import Scheme
from sqsgd.core.task import Task
from sqsgd.core.transforms import Rotate, Subsample, padded
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches
from sqsgd.schemes.privunit_index import privunit_index
from sqsgd.schemes.sqsgd import Direction

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from conformance_vectors import report

CLIENT = Path(__file__).parents[1] / "clients/js/test/answers.js"
PER_SCHEME = 250


def random_scheme(random: np.random.Generator) -> Scheme:
    """A scheme of one of the kinds that a client must know, with random parameters."""
    kind = random.integers(6)
    dim = 3920 if kind == 0 else int(random.integers(1, 600))
    epsilon = float(10 ** random.uniform(-1, 1.5))
    if kind < 2:
        near = int(random.integers(1, min(padded(dim), 300) + 1))
        return privunit_index(dim, epsilon, nearest=near, rotation="round" if kind else "client")
    size = padded(dim) if random.random() < 0.4 else 1 << int(random.integers(0, dim.bit_length()))
    rotate = Rotate(rounds=2)
    if kind % 2:
        transforms = (rotate,) if size >= dim else (Subsample(size=size), rotate)
    else:
        size = int(random.integers(1, padded(dim) + 1))
        transforms = (rotate, Subsample(size=size, rescale=True))
    norm = ScalarDP(1.0, float(random.uniform(0.5, 8)), int(random.integers(1, 30)))
    if kind < 4:
        near, count = (int(random.integers(1, min(size, 80) + 1)) for _ in range(2))
        threshold = int(random.integers(1, min(near, count) + 1))
        law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)
        mechanism = SparseMatches(law=law, norm=norm if random.random() < 0.5 else None)
    else:
        quantizer = PrivQuant(size, 2, epsilon)
        mechanism = Direction(quantizer=quantizer, norm=norm, reach=float(random.choice([2**-12, 1.0])))
    name = "sqsgd" if kind % 2 else "sqsgd-stateless"
    return Scheme(name=name, dim=dim, transforms=transforms, mechanism=mechanism)


def random_vector(dim: int, random: np.random.Generator) -> np.ndarray:
    """Dense, sparse, with ties, or over many magnitudes down to denormal ones."""
    kind, scale = random.integers(4), 10 ** random.uniform(-6, 6)
    if kind == 0:
        x = random.standard_normal(dim) * scale
    elif kind == 1:
        x = random.standard_normal(dim) * (random.random(dim) < 0.05) * scale
    elif kind == 2:
        x = random.integers(-2, 3, dim) * scale
    else:
        x = random.standard_normal(dim) * 10 ** random.uniform(-44, 12, dim)
    return x.astype(np.float32)


def random_group(count: int, random: np.random.Generator) -> dict:
    """A scheme and reports of random vectors, in the format of the conformance vectors."""
    scheme, cases = random_scheme(random), []
    for number in range(count):
        x = random_vector(scheme.dim, random)
        bound = float(np.clip(np.linalg.norm(x.astype(np.float64)), 1e-6, 1e20) * 10 ** random.uniform(-1, 3))
        task = Task(
            round=int(random.integers(2**32)),
            client=int(random.integers(2**64 - 1, dtype=np.uint64)),
            seed=int(random.integers(2**64, dtype=np.uint64)),
            dim=scheme.dim,
            bound=bound,
            clip=bound / 2 if random.random() < 0.2 else None,
        )
        words = random.integers(2**64, size=4096, dtype=np.uint64).tolist()
        cases.append(report(str(number), scheme, x, task, words))
    return {"name": "", "identity": scheme.identity, "encode": cases}


def main() -> int:
    """Compare until the number of vectors is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    random, done, started = np.random.default_rng(wanted.seed), 0, time.monotonic()
    program = [shutil.which("node") or "node", str(CLIENT)]
    node = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    to, back = node.stdin, node.stdout
    if to is None or back is None:
        raise RuntimeError("Node has no pipes")
    while done < wanted.vectors:
        group = random_group(min(PER_SCHEME, wanted.vectors - done), random)
        to.write(json.dumps(group) + "\n")
        to.flush()
        line = back.readline()
        found = json.loads(line)["messages"] if line else {}
        for case in group["encode"]:
            if found.get(case["id"]) != case["message"]:
                print(f"different after {done:,}:", json.dumps({**group, "encode": [case]}))
                print("found", found.get(case["id"]))
                return 1
        done += len(group["encode"])
        if done % (20 * PER_SCHEME) == 0:
            print(f"{done:,} equal, {time.monotonic() - started:.0f} s", flush=True)
    to.close()
    print(f"{done:,} vectors, all messages equal, {time.monotonic() - started:.0f} s")
    return node.wait()


if __name__ == "__main__":
    sys.exit(main())
