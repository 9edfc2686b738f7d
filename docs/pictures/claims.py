"""What the paper says about its figures, and whether our runs agree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sweep_results import FEWEST, Curve

AGREES, DIFFERS, UNCLEAR, OPEN = "agrees", "**differs**", "not clear", "not yet run"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """In each panel, the best of ``better`` is above each of ``worse`` by at least ``margin`` points.

    With ``comparable`` it is instead neither above nor below it.
    """

    says: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    margin: float = 0.0
    comparable: bool = False
    why: str = ""
    """Why our runs differ, if they do."""

    def found(self, curves: Sequence[Curve]) -> tuple[str, str]:
        """The accuracies of both sides in one panel, and the verdict."""
        by_arm = {curve.arm: curve for curve in curves}
        left, right = ([by_arm[arm] for arm in arms] for arms in (self.better, self.worse))
        if any(curve.seeds < FEWEST for curve in (*left, *right)):
            return "", OPEN
        best = max(left, key=lambda curve: curve.final)
        against = ", ".join(_percent(curve) for curve in right)
        verdicts = [self._one(best, curve) for curve in right]
        for verdict in (DIFFERS, UNCLEAR):
            if verdict in verdicts:
                return f"{_percent(best)} against {against}", verdict
        return f"{_percent(best)} against {against}", AGREES

    def _one(self, best: Curve, other: Curve) -> str:
        """Decided where the 95 % intervals of the two means do not meet."""
        gap, spread = best.final - other.final, best.half_widths[-1] + other.half_widths[-1]
        if self.comparable:
            return DIFFERS if abs(gap) > spread else AGREES
        if gap - self.margin > spread:
            return AGREES
        return DIFFERS if self.margin - gap > spread else UNCLEAR


def _percent(curve: Curve) -> str:
    return f"{curve.final:.1f} ± {curve.half_widths[-1]:.1f} %"


_RANGE = (
    "A range of ± 10 leaves most levels unused: the adaptive bound, which follows the largest rotated "
    "coordinate, stays below 3 ([results](results.md#conclusions)). The baselines are stronger here than in "
    "their papers: they have a rotation, a range of three standard deviations and the optimal number of "
    "coordinates."
)


def _rising(says: str, arms: Sequence[str]) -> list[Claim]:
    return [
        Claim(says=f"{says}: {high} above {low}", better=(high,), worse=(low,))
        for low, high in itertools.pairwise(arms)
    ]


def _baselines(fixed: str) -> Claim:
    return Claim(
        says="sqSGD with a fixed U outperforms PM, LDP-Fed and LDP-FL by a significant margin",
        better=(fixed,),
        worse=("piecewise", "ldp-fed", "ldp-fl"),
        why=_RANGE,
    )


def _adaptive(fixed: str) -> Claim:
    return Claim(
        says="The adaptive bound adds over 2 points on average",
        better=(f"{fixed}, adaptive True",),
        worse=(fixed,),
        margin=2.0,
    )


CLAIMS: dict[str, list[Claim]] = {
    "figure1-lenet5": _rising(
        "(Expected) More levels help", ("bytes 64, levels 2", "bytes 192, levels 8", "bytes 320, levels 32")
    ),
    "figure1-resnet20": _rising(
        "(Expected) More levels help", ("bytes 128, levels 2", "bytes 384, levels 8", "bytes 640, levels 32")
    ),
    "figure2-resnet20": [
        Claim(
            says="A high sampling ratio severely hurts: 50 per mille is below the best of the others",
            better=("bytes 128", "bytes 512", "bytes 1024"),
            worse=("bytes 4096",),
        ),
        Claim(
            says="A very low one causes training failure: 1 per mille is below the best of the others",
            better=("bytes 512", "bytes 1024", "bytes 4096"),
            worse=("bytes 128",),
        ),
    ],
    "figure3-tradeoff": [
        Claim(
            says="More levels at the same bytes may not help: K = 128 is below the best of the others",
            better=("levels 2", "levels 8", "levels 32"),
            worse=("levels 128",),
        )
    ],
    "figure4-lenet5": _rising("More privacy budget helps", ("epsilon 200", "epsilon 300", "epsilon 400")),
    "figure4-resnet20": _rising(
        "Large models need high budgets", ("epsilon 400", "epsilon 800", "epsilon 1200")
    ),
    "figure5-mnist": [
        _baselines("sqsgd-paper"),
        Claim(
            says="vqSGD is comparable to sqSGD with a fixed U on the smaller model",
            better=("sqsgd-paper",),
            worse=("vqsgd",),
            comparable=True,
        ),
        _adaptive("sqsgd-paper"),
    ],
    "figure5-resnet20": [
        _baselines("sqsgd-paper, levels 128"),
        Claim(
            says="vqSGD breaks down on the larger model",
            better=("sqsgd-paper, levels 128",),
            worse=("vqsgd",),
        ),
        _adaptive("sqsgd-paper, levels 128"),
    ],
}
"""By sweep."""
