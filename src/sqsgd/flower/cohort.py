"""Which of the connected nodes a round asks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from sqsgd.randomness import EVERYONE, PublicStream

_LOG = logging.getLogger("flwr")
PATIENCE = 2
"""Consecutive rounds without a valid answer after which a node sits out."""
LONGEST = 32
"""The most rounds that a node sits out at a time."""


def draw(nodes: Sequence[int], size: int, seed: int, round: int, purpose: str = "cohort") -> list[int]:
    """``size`` of the nodes by public randomness, or all if there are no more."""
    if size >= len(nodes):
        return list(nodes)
    stream = PublicStream(seed=seed, round=round, client=EVERYONE, purpose=purpose)
    return [nodes[index] for index in stream.subset(len(nodes), size)]


class SilentNodes:
    """Nodes that are connected and do not answer, or not with a report. They sit out.

    A silent node costs a round its whole timeout, an invalid answer the server's bandwidth and disk. A node
    that refuses costs little, and may answer later, so it is asked again. After ``PATIENCE`` rounds in a row
    without a valid answer a node sits out two rounds, and twice as many each time that it is asked again and
    does no better.
    """

    def __init__(self, known: Mapping[str, Sequence[int]] | None = None) -> None:
        self._silent = {int(node): (rounds, until) for node, (rounds, until) in (known or {}).items()}

    def to_dict(self) -> dict[str, list[int]]:
        """For a checkpoint, so that a resumed training asks the same nodes."""
        return {str(node): list(entry) for node, entry in self._silent.items()}

    def update(self, round: int, asked: Collection[int], silent: Collection[int]) -> None:
        """After a round: the nodes that were asked, and those of them that sent nothing, or nothing valid."""
        for node in asked:
            if node not in silent:
                self._silent.pop(node, None)
                continue
            rounds = self._silent.get(node, (0, 0))[0] + 1
            out = min(LONGEST, 2 ** (rounds - 1)) if rounds >= PATIENCE else 0
            self._silent[node] = rounds, round + 1 + out
            if out:
                _LOG.warning(
                    "sqsgd: node %s sent nothing valid in %s rounds in a row: it sits out %s",
                    node,
                    rounds,
                    out,
                )

    def removed_from(self, nodes: Sequence[int], round: int, least: int) -> list[int]:
        """The nodes that do not sit this round out; all of them if fewer than ``least`` would be left."""
        kept = [node for node in nodes if self._silent.get(node, (0, 0))[1] <= round]
        return kept if len(kept) >= least else list(nodes)
