"""The contract's table: one row for every scheme, and for every option that changes the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sqsgd import Scheme, Task, make_scheme


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row. By default: local privacy, all of epsilon spent, no bias."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    notion: str = "local"
    least_epsilon: float = 0.0
    """Below it, the scheme has no parameters."""
    whole_epsilon: bool = True
    """Spends the budget to the last billionth."""
    keeps_budget: bool = True
    """Its codes fit into the requested bytes."""
    bias: float = 0.0
    """|E x̂ - x|² / |x|² that its documentation states."""
    mean_bytes: int = 64
    """A budget at which a report covers all of 64 coordinates: there is no residual."""
    unlimited: bool = False
    """Made without a budget of bytes."""
    waits: bool = False
    """Keeps a residual at every budget."""
    tiny: dict[str, Any] | None = field(default_factory=lambda: {"dim": 4, "bytes": 2})
    """A budget at which all outputs can be listed; None: continuous, or too many outputs."""
    tiny_options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}{self.options or ''}"

    def make(self, dim: int = 300, epsilon: float = 120.0, bytes: int = 64) -> Scheme:
        limit = None if self.unlimited else bytes
        return make_scheme(self.name, dim=dim, epsilon=epsilon, bytes=limit, **self.options)

    def make_tiny(self, epsilon: float) -> Scheme:
        return make_scheme(self.name, epsilon=epsilon, **self.tiny, **{**self.options, **self.tiny_options})


DIRECTION_BIAS = 0.0009  # one rotation of 64 coordinates is not quite Gaussian: 3 %
SHORT = {"reach": 1.0}  # a range that vectors within the bound can fill
ONE, TWO, TINY = ({"dim": dim, "bytes": 1} for dim in (1, 2, 4))
THREE, NORM = {"dim": 3, "bytes": 2}, {"norm_epsilon": 3.0}
PAPER = {"least_epsilon": 1.0, "whole_epsilon": False, "tiny": {"dim": 2, "bytes": 2}}
CENTRAL = {"notion": "central", "whole_epsilon": False, "tiny": None}
TWO_PICKS = {"picks": 2, "levels": 4}
DISJOINT = {"reports": 20, "batching": "disjoint", "rate": 0.1}
CASES = [
    Case(name="sqsgd", options={"code": "signs"}, bias=DIRECTION_BIAS, tiny_options=SHORT),
    Case(name="sqsgd", options={"levels": 3, "reach": 1.5}, bias=DIRECTION_BIAS),
    Case(name="sqsgd", options=NORM | {"code": "signs"}, bias=DIRECTION_BIAS, tiny_options=SHORT),
    Case(name="sqsgd-stateless", options={"code": "signs"}, bias=DIRECTION_BIAS, tiny_options=SHORT),
    Case(name="sqsgd-stateless", options={"levels": 4, "reach": 2.0}, bias=DIRECTION_BIAS),
    Case(name="sqsgd", bias=DIRECTION_BIAS, tiny=TINY),
    Case(name="sqsgd-stateless", bias=DIRECTION_BIAS, tiny=TINY),
    Case(name="sqsgd", options=NORM | {"code": "sparse"}, bias=DIRECTION_BIAS, tiny=TINY),
    Case(name="sqsgd-paper", **PAPER),
    Case(name="sqsgd-paper", options={"adaptive": True}, **PAPER, tiny_options={"norm_epsilon": 1.0}),
    Case(name="sqsgd-paper", options={"levels": 5, "rule": "optimal"}),
    Case(name="privunit-index", bias=DIRECTION_BIAS),
    Case(name="privunit-index", options={"nearest": 1}, bias=DIRECTION_BIAS),
    Case(name="privunit-index", options={"rotation": "round"}, bias=DIRECTION_BIAS),
    Case(name="sqsgd-stateless", options={"rotation": "round"}, bias=DIRECTION_BIAS, tiny=TINY),
    Case(name="fedsgd", notion="none", keeps_budget=False, tiny=None),
    Case(name="piecewise", tiny={"dim": 2, "bytes": 1}, tiny_options=SHORT),
    Case(name="piecewise", options={"coordinates": 1, "levels": 5}, tiny=THREE, tiny_options=SHORT),
    Case(name="piecewise", options={"coordinates": 1, "reach": 8.0}, tiny=TWO, tiny_options=SHORT),
    Case(name="ldp-fed", tiny=TINY, tiny_options=SHORT),
    Case(name="ldp-fed", options={"levels": 16}, tiny={"dim": 2, "bytes": 1}, tiny_options=SHORT),
    Case(name="ldp-fl", tiny_options=SHORT),
    Case(name="fedsel", waits=True, bias=0.8, tiny={"dim": 3, "bytes": 1}),
    Case(name="fedsel", options=TWO_PICKS, waits=True, bias=1.0, tiny={"dim": 3, "bytes": 1}),
    Case(name="privunit", bias=DIRECTION_BIAS, tiny=None),
    Case(name="privunit", options={"levels": 2}, bias=DIRECTION_BIAS, tiny=None),
    Case(name="privunit", options={"levels": 5}, bias=DIRECTION_BIAS, tiny=None),
    Case(name="privunit", options={"norm_epsilon": 3.0}, unlimited=True, keeps_budget=False, tiny=None),
    Case(name="privunit-g", bias=DIRECTION_BIAS, tiny=None),
    Case(name="privunit-g", options={"levels": 3}, bias=DIRECTION_BIAS, tiny=None),
    Case(name="privunit-g", unlimited=True, keeps_budget=False, tiny=None),
    Case(name="privunit-inf"),
    Case(name="sqkr"),
    Case(name="vqsgd", tiny={"dim": 2, "bytes": 2}),
    Case(name="vqsgd", options={"repeats": 3}, tiny={"dim": 2, "bytes": 2}),
    Case(name="qsgd", notion="none", tiny=None),
    Case(name="qsgd", options={"levels": 1}, notion="none", tiny=None),
    Case(name="terngrad", notion="none", tiny=None),
    Case(name="dgc", notion="none", mean_bytes=64 * 4, tiny=None),
    Case(name="dgc", options={"count": 1}, notion="none", waits=True, bias=1.0, tiny=None),
    Case(name="sqsgd-record", notion="record", tiny=None),
    Case(name="sqsgd-record", options=DISJOINT, notion="record", tiny=None),
    Case(name="cpsgd", **CENTRAL),
    Case(name="cpsgd", options={"levels": 4, "reach": 2.0}, **CENTRAL),
    Case(name="cpsgd", options={"clients": 50, "delta": 1e-6}, **CENTRAL),
]
PRIVATE = [case for case in CASES if case.notion != "none"]


def task(scheme, client=0, **changes):
    """A task with a bound that unit vectors fit: of norms, or of rotated coordinates."""
    bound = 5.0 / scheme.mechanism.dim**0.5 if scheme.mechanism.traits.bounds_coordinates else 1.5
    if scheme.sums_records:  # of vectors half as long
        bound *= 2
    return Task(**{"round": 4, "client": client, "seed": 11, "dim": scheme.dim, "bound": bound, **changes})


def unit_vector(dim, seed=0):
    x = np.random.default_rng(seed).standard_normal(dim)
    return (x / np.linalg.norm(x)).astype(np.float32)
