"""The conformance vectors: tasks, inputs, private words and the exact bytes that follow from them.

``python tools/conformance_vectors.py`` writes src/sqsgd/audit/vectors.json. The parameters are fixed
here and do not depend on what the planner would choose, so that the vectors change only with the format.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal import exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.geometry import kept_share, l2_norm
from sqsgd.audit.conformance import FORMAT, PATH
from sqsgd.core import Scheme
from sqsgd.core.codec import MalformedReport
from sqsgd.core.random import Bytes, Rng, seeded_rng
from sqsgd.core.task import Task
from sqsgd.core.transforms import Rotate, Subsample
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches
from sqsgd.schemes.privunit_index import NearestVertices, privunit_index
from sqsgd.schemes.sqsgd import SIGNS, Direction

_WORDS = 2048  # at hand for a report, which uses some of them
_LAST = 2**64 - 1
_ROTATE = Rotate(rounds=2)
_U8 = np.dtype("<u8")


class GivenWords(Rng):
    """Replays 64-bit words. It protects nobody.

    Requests for bytes take whole words, little-endian.

    >>> rng = GivenWords([1, 2**64 - 1])
    >>> rng.word(), rng.take(3).tolist(), rng.used, rng.protects
    (1, [255, 255, 255], [1, 18446744073709551615], False)
    """

    def __init__(self, words: Iterable[int]) -> None:
        super().__init__(0)
        self._script, self._count = list(words), 0

    @property
    def used(self) -> list[int]:
        """The words handed out so far."""
        return self._script[: self._count]

    def word(self) -> int:
        """The next word."""
        if self._count == len(self._script):
            raise RuntimeError(f"all {self._count} given words are used")
        self._count += 1
        return self._script[self._count - 1]

    def take(self, count: int) -> Bytes:
        """The bytes of the next words."""
        found: npt.NDArray[np.uint64] = np.array([self.word() for _ in range(-(-count // 8))], _U8)
        return found.view(np.uint8)[:count]

    def child(self) -> Rng:
        """The same words: a part of a batch goes on with them."""
        return self

    def fill(self, target: Bytes) -> None:
        """Overwrite an array with the bytes of the next words."""
        target[:] = self.take(target.size)


def _sparse(size: int, near: int, count: int, threshold: int, epsilon: float, norm: ScalarDP | None) -> Any:
    law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)
    return SparseMatches(law=law, norm=norm)


def _signs(size: int, threshold: int, epsilon: float, norm: ScalarDP, reach: float = SIGNS) -> Direction:
    return Direction(quantizer=PrivQuant(size, 2, epsilon, threshold=threshold), norm=norm, reach=reach)


def _schemes() -> dict[str, Scheme]:
    block = (Subsample(size=64), _ROTATE)
    sample = (_ROTATE, Subsample(size=100, rescale=True))
    symbol = ScalarDP(maximum=1.0, epsilon=4.0, levels=4)
    return {
        "index-3920": privunit_index(3920, 8.0, nearest=25),
        "index-100": privunit_index(100, 2.0, nearest=54),
        "index-round": privunit_index(100, 2.0, nearest=54, rotation="round"),
        "index-5": privunit_index(5, 1.0, nearest=6),
        "index-1": privunit_index(1, 3.0, nearest=1),
        "vertex-1": Scheme(
            name="privunit-index", dim=1, transforms=(_ROTATE,),
            mechanism=NearestVertices(dim=1, epsilon=3.0, nearest=1),
        ),
        "sparse-300": Scheme(
            name="sqsgd-stateless", dim=300, transforms=(_ROTATE,),
            mechanism=_sparse(512, 12, 5, 4, 20.0, None),
        ),
        "sparse-round": Scheme(
            name="sqsgd-stateless", dim=120, transforms=(replace(_ROTATE, shared=True),),
            mechanism=_sparse(128, 12, 5, 4, 20.0, None),
        ),
        "sparse-block": Scheme(
            name="sqsgd", dim=150, transforms=block, keeps_state=True,
            mechanism=_sparse(64, 24, 9, 6, 10.5, ScalarDP(maximum=1.0, epsilon=2.0, levels=2)),
        ),
        "sparse-dense": Scheme(
            name="sqsgd-stateless", dim=7, transforms=(_ROTATE,),
            mechanism=_sparse(8, 6, 5, 3, 3.0, None),
        ),
        "signs-block": Scheme(
            name="sqsgd", dim=100, transforms=block, keeps_state=True, mechanism=_signs(64, 63, 46.0, symbol)
        ),
        "signs-sample": Scheme(
            name="sqsgd-stateless", dim=300, transforms=sample,
            mechanism=_signs(100, 60, 8.0, symbol, reach=1.0),
        ),
    }  # fmt: skip


def _inputs(dim: int) -> Iterator[tuple[str, Vector, float]]:
    """Name, vector and bound."""
    dense = (2 * seeded_rng(dim).uniforms(dim) - 1).astype(np.float32)
    size, lone = l2_norm(dense), np.zeros(dim, np.float32)
    lone[dim // 2] = -1.5
    equal = np.where(np.arange(dim) % 3, np.float32(0.25), np.float32(-0.25))
    yield "dense", dense, 2 * size
    yield "sparse", lone, 2.0
    yield "zero", np.zeros(dim, np.float32), 1.0
    yield "minus-zero", np.full(dim, -0.0, np.float32), 1.0
    yield "short", dense * np.float32(1e-3), size
    yield "tiny", dense * np.float32(1e-8), size
    yield "at-the-bound", dense, size
    yield "beyond-the-bound", dense, size / 8
    yield "denormal", dense * np.float32(1e-41), 1e-9
    yield "largest", np.full(dim, 1e13, np.float32), 1e13
    yield "equal", equal, l2_norm(equal)


def _draws(scheme: Scheme) -> Iterator[tuple[str, list[int]]]:
    """Name and first words of draws that random words hardly ever reach."""
    mechanism = scheme.mechanism
    if not mechanism.traits.has_symbol:
        yield "coin-below", [2**63 - 1]
        yield "coin-at", [2**63]
    if isinstance(mechanism, NearestVertices):
        edge = int(mechanism._is_near._sure[0])
        yield "word-below", [0, edge - 1]
        yield "word-tied-below", [0, edge, 0]
        yield "word-tied-above", [0, edge, _LAST]
        yield "rank-rejected", [0, 0, _LAST, _LAST]
    elif isinstance(mechanism, SparseMatches):
        start = [0] if mechanism.norm is None else []
        yield "lowest", [*start, 0]
        yield "highest", [*start, _LAST - 1]
        yield "words-do-not-suffice", [*start, 2**62, *[0] * mechanism._words]
    elif isinstance(mechanism, Direction):
        law = mechanism.quantizer.law
        with exact.precision(256):
            edge = int((law.cdf(law.threshold) * 2**64).floor().unique_fmpz())
        yield "word-tied", [edge, 0]
        words = mechanism.quantizer._one_pass_bytes // 8
        yield "more-tries", [2**63, *[0] * words]
        yield "rounding-tied", [2**63, *[_LAST] * words]
        for number in range(6):
            yield f"scrambled-{number}", []


@lru_cache(maxsize=64)
def _words(number: int) -> list[int]:
    return [int(word) for word in seeded_rng(number).words(_WORDS)]


def described(task: Task) -> dict[str, Any]:
    """JSON numbers are doubles in most languages, so larger ones are strings."""
    return {
        "round": task.round, "client": str(task.client), "seed": str(task.seed),
        "dim": task.dim, "bound": task.bound, "clip": task.clip,
    }  # fmt: skip


def report(name: str, scheme: Scheme, x: Vector, task: Task, words: list[int]) -> dict[str, Any]:
    """The vector of one report that draws from these words; it holds those that were used."""
    rng = GivenWords(words)
    message = scheme.encode(x, task, rng)
    return {
        "id": name,
        "task": described(task),
        "x": base64.b64encode(x.astype("<f4").tobytes()).decode(),
        "words": "".join(f"{word:016x}" for word in rng.used),
        "message": message.hex(),
    }


def _encode(group: str, scheme: Scheme) -> Iterator[tuple[dict[str, Any], Task]]:
    kinds = list(_inputs(scheme.dim))
    few = scheme.dim > 1000
    for number, (name, x, bound) in enumerate(kinds[:2] if few else kinds):
        task = Task(round=number, client=2**64 - 2 - number, seed=2**63 + number, dim=scheme.dim, bound=bound)
        yield report(f"{group}/{name}", scheme, x, task, _words(number)), task
    _, x, bound = kinds[1 if few else 0]
    for number, (name, first) in enumerate(_draws(scheme)):
        task = Task(round=2**32 - 1, client=number, seed=number, dim=scheme.dim, bound=bound)
        zero = np.zeros_like(x) if name.startswith("coin") else x
        yield report(f"{group}/{name}", scheme, zero, task, [*first, *_words(50 + number)]), task
    task = Task(round=7, client=8, seed=9, dim=scheme.dim, bound=bound, clip=bound / 4)
    yield report(f"{group}/clipped", scheme, x, task, _words(100)), task
    if len(scheme.transforms) == 1 and not scheme.mechanism.traits.has_symbol and not few:
        yield from _coin_edges(group, scheme, x)


def _coin_edges(group: str, scheme: Scheme, x: Vector) -> Iterator[tuple[dict[str, Any], Task]]:
    """Coins at the very edge, for a bound at which sums in another order would give another edge."""
    for step in range(100, 1000):
        bound = l2_norm(x) * step / 64
        task = Task(round=5, client=5, seed=5, dim=scheme.dim, bound=bound)
        y = scheme.transforms[0].forward(x, task)
        edges = [(1 + norm / bound) / 2 for norm in (l2_norm(y), math.sqrt(_plain_sum(y)))]
        if edges[0] != edges[1]:
            for name, below in (("coin-on-the-edge", 0), ("coin-below-the-edge", 1)):
                first = (int(edges[0] * 2**53) - below) << 11
                yield report(f"{group}/{name}", scheme, x, task, [first, *_words(200)]), task
            return


def _plain_sum(y: Vector) -> float:
    total = 0.0
    for value in y.tolist():
        total += value * value
    return total


def _decode(scheme: Scheme, case: dict[str, Any], task: Task) -> dict[str, Any]:
    message = bytes.fromhex(case["message"])
    return {
        "id": case["id"],
        "task": case["task"],
        "message": case["message"],
        "columns": [column.tolist() for column in scheme.open(message, task)],
        "estimate": [float(f"{value:.9g}") for value in scheme.decode(message, task)],
    }


def _sealed(scheme: Scheme, task: Task, body: bytes) -> bytes:
    """A message whose checksum is right, whatever its columns hold."""
    before = struct.pack("<BI", 1, scheme.fingerprint)
    return struct.pack("<BI", 1, zlib.crc32(before + task.binding + body)) + body


def _flipped(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 16]) + message[at + 1 :]


def _malformed(group: str, scheme: Scheme, message: bytes, task: Task) -> Iterator[dict[str, Any]]:
    start = len(message) - len(scheme.body(message))
    body = scheme.body(message)
    changed = {
        "empty": b"",
        "envelope-cut": message[: start - 1],
        "cut": message[:-1],
        "longer": message + b"\0",
        "last-bit": message[:-1] + bytes([message[-1] ^ 128]),
        **{f"byte-{at}": _flipped(message, at) for at in range(start)},
        "all-ones": _sealed(scheme, task, b"\xff" * len(body)),
        "last-byte-ones": _sealed(scheme, task, body[:-1] + b"\xff"),
        "valid": message,
    }
    others = {
        "other-client": replace(task, client=task.client - 1),
        "other-bound": replace(task, bound=math.nextafter(task.bound, math.inf)),
    }
    for name, bad in changed.items():
        yield _judged(f"{group}/{name}", scheme, bad, task)
    for name, other in others.items():
        yield _judged(f"{group}/{name}", scheme, message, other)


def _judged(name: str, scheme: Scheme, message: bytes, task: Task) -> dict[str, Any]:
    try:
        scheme.open(message, task)
        reason = "accepted"
    except MalformedReport as error:
        reason = error.reason
    return {"id": name, "task": described(task), "message": message.hex(), "reason": reason}


def _scale(scheme: Scheme) -> float:
    """What an estimated length is divided by to give the value of a code with a positive sign."""
    mechanism = scheme.mechanism
    if isinstance(mechanism, Direction):
        correction = mechanism.reach / kept_share(mechanism.reach, mechanism.dim)
        return math.sqrt(mechanism.dim) * mechanism.quantizer.scale / correction
    return float(mechanism.scale)  # type: ignore[attr-defined]


def group_of(name: str, scheme: Scheme) -> dict[str, Any]:
    """The vectors of one scheme."""
    reports = list(_encode(name, scheme))
    decoded = [] if scheme.dim > 1000 else [_decode(scheme, *reports[i]) for i in (0, 4, -1)]
    malformed = _malformed(name, scheme, bytes.fromhex(reports[0][0]["message"]), reports[0][1])
    return {
        "name": name,
        "identity": scheme.identity,
        "fingerprint": struct.pack("<I", scheme.fingerprint).hex(),
        "epsilon": scheme.privacy.epsilon,
        "scale": _scale(scheme),
        "encode": [case for case, _ in reports],
        "decode": decoded,
        "malformed": list(malformed),
    }


def vectors() -> dict[str, Any]:
    """All vectors."""
    return {"format": FORMAT, "groups": [group_of(*each) for each in _schemes().items()]}


def text() -> str:
    """The file, one vector per line."""
    groups = []
    for group in vectors()["groups"]:
        parts = []
        for key, value in group.items():
            listed = isinstance(value, list)
            rows = ",\n    ".join(json.dumps(each) for each in value) if listed else json.dumps(value)
            parts.append(f"   {json.dumps(key)}: " + (f"[\n    {rows}\n   ]" if listed else rows))
        groups.append("  {\n" + ",\n".join(parts) + "\n  }")
    return f'{{\n "format": {json.dumps(FORMAT)},\n "groups": [\n' + ",\n".join(groups) + "\n ]\n}\n"


if __name__ == "__main__":
    PATH.write_text(text())
