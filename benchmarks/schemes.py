"""The estimation error, message size and speed of every scheme, measured in one run.

python benchmarks/schemes.py [--seconds 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sqsgd._internal.files import known
from sqsgd.core import Notion, Scheme
from sqsgd.core.random import seeded_rng
from sqsgd.core.task import Task
from sqsgd.schemes import SCHEMES, make_scheme
from sqsgd.schemes.privunit import sphere_cap
from sqsgd.training.summary import mean_interval

LEAST_TRIALS, MOST_TRIALS = 30, 1000


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A vector's length and the two budgets."""

    dim: int
    epsilon: float
    bytes: int

    @property
    def optimum(self) -> float:
        """NMSE of PrivUnit with all of epsilon and a known norm: the best possible at any message size."""
        return sphere_cap(self.dim, self.epsilon).error


SETTINGS = (
    Setting(dim=1024, epsilon=10.0, bytes=128),
    Setting(dim=1024, epsilon=400.0, bytes=128),
    Setting(dim=119850, epsilon=20.0, bytes=7),
    Setting(dim=119850, epsilon=40.0, bytes=11),
    Setting(dim=119850, epsilon=100.0, bytes=27),
    Setting(dim=119850, epsilon=400.0, bytes=256),
    Setting(dim=1722224, epsilon=2000.0, bytes=415),
    Setting(dim=1722224, epsilon=2000.0, bytes=7168),
)


@dataclass(frozen=True, kw_only=True)
class Estimation:
    """One scheme at one setting. ``where`` says whether the error is that of the whole vector or of a block.

    A scheme that chooses coordinates and omits the others is biased: its error is the energy of the omitted
    ones, which averaging over clients does not reduce, so it has no ratio to the optimum.
    """

    setting: Setting
    scheme: str
    notion: Notion
    epsilon: float
    where: str
    nmse: float
    half_width: float
    predicted: float
    ratio_to_optimum: float
    message_bytes: int
    encode_ms: float
    decode_ms: float
    trials: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with infinity as a string and unknown values as null."""
        return {name: known(value) for name, value in asdict(self).items()}


def schemes_at(setting: Setting) -> Iterator[tuple[str, Scheme]]:
    """Every scheme that fits the budgets; those that draw floats also without a limit on their bits."""
    for name in SCHEMES:
        try:
            scheme = make_scheme(name, dim=setting.dim, epsilon=setting.epsilon, bytes=setting.bytes)
        except ValueError:
            continue
        yield name, scheme
        if scheme.privacy.arithmetic == "real":
            yield f"{name}, float32", make_scheme(name, dim=setting.dim, epsilon=setting.epsilon)


def measure(name: str, scheme: Scheme, setting: Setting, seconds: float) -> Estimation:
    """Encode and decode random unit vectors for about ``seconds``."""
    numbers, rng, block = np.random.default_rng(1), seeded_rng(1), scheme.sends_block
    errors: list[float] = []
    encoding: list[float] = []
    decoding: list[float] = []
    started = time.perf_counter()
    while len(errors) < LEAST_TRIALS or (
        len(errors) < MOST_TRIALS and time.perf_counter() - started < seconds
    ):
        x = numbers.standard_normal(scheme.dim, np.float32)
        x /= np.linalg.norm(x)
        task = Task(round=len(errors), client=0, seed=1, dim=scheme.dim, bound=scheme.unit_bound)
        begun = time.perf_counter()
        message = scheme.encode(x, task, rng)
        encoded = time.perf_counter()
        error = scheme.decode(message, task)
        decoding.append(time.perf_counter() - encoded)
        encoding.append(encoded - begun)
        error -= x
        if block:
            sent = scheme.sent_coordinates((), task)  # they do not depend on the vector
            error, x = error[sent], x[sent]
        errors.append(float(error @ error) / float(x @ x))
    nmse, half_width = mean_interval(errors)
    biased = scheme.mechanism.traits.chooses
    return Estimation(
        setting=setting,
        scheme=name,
        notion=scheme.privacy.notion,
        epsilon=scheme.privacy.epsilon,
        where="block" if block else "whole, biased" if biased else "whole",
        nmse=nmse,
        half_width=half_width,
        predicted=scheme.nmse,
        ratio_to_optimum=math.nan if block or biased else nmse / setting.optimum,
        message_bytes=scheme.bits // 8,
        encode_ms=1e3 * min(encoding),
        decode_ms=1e3 * min(decoding),
        trials=len(errors),
    )


def estimations(settings: tuple[Setting, ...] = SETTINGS, seconds: float = 2.0) -> Iterator[Estimation]:
    """Every scheme at every setting."""
    for setting in settings:
        for name, scheme in schemes_at(setting):
            yield measure(name, scheme, setting, seconds)


def main() -> None:
    """Print one table per setting, best scheme first, or everything as JSON."""
    parser = argparse.ArgumentParser(description="Error, bytes and times of every scheme.")
    parser.add_argument("--seconds", type=float, default=2.0, help="per scheme and setting")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.json:
        print(json.dumps([row.to_dict() for row in estimations(seconds=options.seconds)], indent=2))
        return
    for setting in SETTINGS:
        print(
            f"dim {setting.dim:,}, epsilon {setting.epsilon:g}, {setting.bytes:,} bytes: "
            f"the optimum (PrivUnit) is {setting.optimum:.4g}"
        )
        print(
            f"{'scheme':26} {'notion':8} {'error of':14} {'NMSE ± 95 %':>20} {'predicted':>10} "
            f"{'/ optimum':>10} {'bytes':>9} {'encode ms':>10} {'decode ms':>10}"
        )
        rows = estimations((setting,), options.seconds)
        for row in sorted(rows, key=lambda row: (row.notion, row.where, row.nmse)):
            print(
                f"{row.scheme:26} {row.notion:8} {row.where:14} {row.nmse:>11.4g} ± {row.half_width:<6.2g} "
                f"{row.predicted:10.4g} {row.ratio_to_optimum:10.4g} {row.message_bytes:9,} "
                f"{row.encode_ms:10.2f} {row.decode_ms:10.2f}"
            )
        print()


if __name__ == "__main__":
    main()
