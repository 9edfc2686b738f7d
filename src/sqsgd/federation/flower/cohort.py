"""Which of the connected nodes a round asks."""

import json
import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from sqsgd._internal.files import FOLDER, new_secret, read_secret, replace_secret, secret_folder
from sqsgd.core.random import EVERYONE, PublicStream

_LOG = logging.getLogger("flwr")
PATIENCE = 2  # rounds in a row without a valid answer after which a node sits out
LONGEST = 32  # the most rounds that a node sits out at a time


def draw(nodes: Sequence[int], size: int, seed: int, round: int) -> list[int]:
    """``size`` of the nodes by public randomness, or all."""
    if size >= len(nodes):
        return list(nodes)
    stream = PublicStream(seed=seed, round=round, client=EVERYONE, purpose="cohort")
    return [nodes[index] for index in stream.subset(len(nodes), size)]


def check_begun(name: str, before: object, now: object) -> None:
    """Raise ValueError if a resumed training was begun with another value."""
    if before != now:
        begun = f"this training was begun with {name} = {before!r}, not {now!r}"
        raise ValueError(f"{begun}: restore it, or start another with another out")


class SilentNodes:
    """Nodes that are connected and do not answer, or not with a report: they sit out.

    Such a node costs a round its whole timeout. After two rounds in a row without a valid answer it sits out
    two, and twice as many each time that it does no better. A node that refuses costs little.
    """

    def __init__(self, known: Mapping[str, Sequence[int]] | None = None) -> None:
        """``known``: by node, the rounds in a row without an answer, and the round from which it is asked."""
        self.known = {node: tuple(entry) for node, entry in (known or {}).items()}

    def update(self, round: int, asked: Collection[int], silent: Collection[int]) -> None:
        for node in asked:
            rounds = self.known.pop(str(node), (0, 0))[0] + 1
            if node in silent:
                out = min(LONGEST, 2 ** (rounds - 1)) if rounds >= PATIENCE else 0
                self.known[str(node)] = rounds, round + 1 + out
                if out:
                    text = "sqsgd: node %s sent nothing valid in %s rounds in a row: it sits out %s"
                    _LOG.warning(text, node, rounds, out)

    def removed_from(self, nodes: Sequence[int], round: int, least: int) -> list[int]:
        """The nodes that do not sit this round out; all of them if fewer than ``least`` would be left."""
        kept = [node for node in nodes if self.known.get(str(node), (0, 0))[1] <= round]
        return kept if len(kept) >= least else list(nodes)


class NodeOrder:
    """The order in which nodes are asked, once in each pass: random, and the server's secret.

    If all nodes that a pass needs are connected when the first begins, they fill the slots of each pass in a
    random order of its own: ``scope`` is ``"run"``. Otherwise each round draws from those connected:
    ``"round"``. The order is kept apart from the results, and written before the nodes of a round are asked.

    Guarantees
    ----------
    * No node is asked in two rounds of a pass, even if the server is killed in between:
      tests/flower/test_once.py::test_each_node_is_asked_once_and_then_nobody_is_left,
      ::test_a_server_that_died_in_a_round_asks_the_same_nodes_again.
    * All orders are equally likely: tests/flower/test_once.py::test_all_orders_are_equally_likely. Those of
      passes are independent: tests/flower/test_several_passes.py::test_each_pass_has_an_order_of_its_own.
    * Neither results nor requests reveal which node had which slot:
      tests/flower/test_once.py::test_the_results_do_not_tell_who_was_asked_when.
    """

    def __init__(self, per_round: int, reports: int = 1) -> None:
        self.per_round, self.reports = per_round, reports
        self.length = 0  # of a pass, in rounds; 0: there is one pass of any length
        self.scope: Literal["", "run", "round"] = ""
        self.name = ""  # of the file; empty: nothing is kept
        self.asked: set[int] = set()  # in earlier rounds of this pass
        self._pass = 0
        self._plan: list[int] = []  # the nodes of all slots, round after round
        self._asking: tuple[int, dict[int, int]] = (-1, {})  # a round under way, and the slot of each node

    def keep(self, results: Path) -> None:
        self.name = new_secret(self._content(), apart_from=results)

    def resume(self, name: str, round: int) -> None:
        try:
            kept = json.loads(read_secret(name))
        except FileNotFoundError:
            lost = f"{name}, the secret order of this training's nodes, is not in {secret_folder()}"
            raise ValueError(f"{lost}, and nodes could be asked twice: set {FOLDER} to where it is") from None
        check_begun("reports", kept["reports"], self.reports)
        check_begun("clients-per-round", kept["per_round"], self.per_round)  # by it slots were given to nodes
        check_begun("num_rounds / reports", kept["length"], self.length)
        self.name, self.scope, self._plan, self.asked = name, kept["scope"], kept["plan"], set(kept["asked"])
        self._pass = kept["pass"]
        begun, slots = kept["asking"]
        self._asking = begun, {int(node): slot for node, slot in slots.items()}
        if begun < round:
            self.done()

    def candidates(self, round: int) -> set[int] | None:
        """The only nodes that may be asked in the round; None: every node that was not asked in its pass."""
        if self.length and (number := round // self.length) != self._pass:
            self._pass, self.asked = number, set()
        if self._asking[0] == round:  # the server was killed in this round
            return set(self._asking[1])
        return set(self._planned(round)) or None

    def slots(self, round: int, nodes: Sequence[int], rounds: int) -> dict[int, int]:
        """The nodes of a round with their slots; ``nodes`` are connected, ``candidates`` allows them."""
        connected = set(nodes) - self.asked
        if self._asking[0] != round:
            drawn = {node: slot for slot, node in enumerate(self._drawn(round, nodes, rounds))}
            self._asking = round, {node: slot for node, slot in drawn.items() if node in connected}
        if self.name:
            replace_secret(self.name, self._content())
        return {node: slot for node, slot in self._asking[1].items() if node in connected}

    def _drawn(self, round: int, nodes: Sequence[int], rounds: int) -> Sequence[int]:
        if not self.scope:
            needed, system = (self.length or rounds) * self.per_round, secrets.SystemRandom()
            self.scope = "run" if round == 0 and 0 < needed <= len(nodes) else "round"
            if self.scope == "run":
                chosen = system.sample(nodes, needed)
                others = (system.sample(chosen, needed) for _ in range(1, self.reports))
                self._plan = [*chosen, *(node for order in others for node in order)]
            if self.scope == "round":
                text = "sqsgd: %s nodes are connected and %s rounds need %s: their order is random within "
                text += "each round only, not over the whole training"
                _LOG.warning(text, len(nodes), self.length or rounds, needed)
        if planned := self._planned(round):
            return planned
        self.scope = "round"  # more rounds than were planned
        return secrets.SystemRandom().sample(nodes, min(self.per_round, len(nodes)))

    def _planned(self, round: int) -> list[int]:
        return self._plan[round * self.per_round : (round + 1) * self.per_round]

    def done(self) -> None:
        """The round is over: its nodes are not asked again, answered or not."""
        self.asked |= set(self._asking[1])
        self._asking = (-1, {})

    def finish(self) -> None:
        """Keep who was asked, for a later round, and forget when."""
        self._plan = []
        if self.name:
            replace_secret(self.name, self._content())

    def _content(self) -> bytes:
        kept = {"per_round": self.per_round, "scope": self.scope, "plan": self._plan, "asking": self._asking}
        kept |= {"reports": self.reports, "length": self.length, "pass": self._pass}
        return json.dumps({**kept, "asked": sorted(self.asked)}).encode()
