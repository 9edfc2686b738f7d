"""Nodes that are connected and do not answer: each costs a round its whole timeout, so it is asked less."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

_LOG = logging.getLogger("flwr")
PATIENCE = 2
"""Rounds in a row without any answer after which a node sits out."""
LONGEST = 32
"""Rounds that it sits out at most; it is asked anew after each time, and twice as long when still silent."""


class Silence:
    """Who was silent for how many rounds in a row, and from which round on it is asked again."""

    def __init__(self, known: Mapping[str, Sequence[int]] | None = None) -> None:
        self._of = {int(node): (rounds, again) for node, (rounds, again) in (known or {}).items()}

    def to_dict(self) -> dict[str, list[int]]:
        """For a checkpoint, so that a resumed training asks whom it would have asked."""
        return {str(node): list(entry) for node, entry in self._of.items()}

    def heard(self, round: int, asked: Collection[int], silent: Collection[int]) -> None:
        """After a round: who was asked, and who of them sent nothing at all."""
        for node in asked:
            if node not in silent:
                self._of.pop(node, None)
                continue
            rounds = self._of.get(node, (0, 0))[0] + 1
            out = min(LONGEST, 2 ** (rounds - 1)) if rounds >= PATIENCE else 0
            self._of[node] = rounds, round + 1 + out
            if out:
                _LOG.warning(
                    "sqsgd: node %s was silent %s rounds in a row: it sits out %s", node, rounds, out
                )

    def without(self, round: int, nodes: Sequence[int], least: int) -> list[int]:
        """Those that do not sit this round out; all of them where fewer than ``least`` would be left."""
        kept = [node for node in nodes if self._of.get(node, (0, 0))[1] <= round]
        return kept if len(kept) >= least else list(nodes)
