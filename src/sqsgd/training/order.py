"""Which user fills which slot of a run, once in each pass: random orders that nobody knows.

A secret order is kept on the server's own disk, apart from the run's folder, until the run is finished.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd._internal.files import FOLDER, new_secret, read_secret, secret_folder
from sqsgd.core.random import Keystream
from sqsgd.training.settings import MOST_REPORTS

Users = npt.NDArray[np.int64]

MOST_USERS = 2**31
KEY_BYTES = 32
_PIECE = 1 << 15  # users whose words are read at once
_KEPT = ("users", "per_round", "rounds", "reports", "one_visit")


@dataclass(frozen=True, kw_only=True)
class Order:
    """``reports`` permutations of the users, cut into rounds of ``per_round``. The last may get no slot.

    Each permutation has its own key. Each user has 128 bits of the key's keystream (AES-256). In the order of
    these bits users fill the slots. Two of n are equal with probability below n² / 2^129.

    Guarantees
    ----------
    * Every user has at most one slot in a pass: tests/training/test_order.py::test_every_user_has_one_slot.
    * All orders are equally likely: tests/training/test_order.py::test_all_orders_are_equally_likely.
    * Those of several reports are independent:
      tests/training/test_several_reports.py::test_the_orders_of_several_reports_are_independent.
    * The keys of ``secret_order`` come from the operating system, and no text of an order shows them:
      tests/training/test_order.py::test_a_secret_order_comes_from_the_operating_system.
    """

    users: int
    per_round: int
    rounds: int = 0
    """Of a pass; 0: as many as there are users for."""
    reports: int = 1
    one_visit: bool = False
    """Users report ``reports`` times in one round, each time in another order, not in as many passes."""
    key: bytes = field(repr=False)
    """The keys, one after the other."""
    seeded: bool
    """The key comes from a public seed: a simulation, whose central guarantee protects nobody."""

    def __post_init__(self) -> None:
        checks.integer("users", self.users, 1, MOST_USERS)
        checks.integer("per_round", self.per_round, 1, self.users)
        checks.integer("rounds", self.rounds, 0, self.users // self.per_round)
        if len(self.key) != KEY_BYTES * checks.integer("reports", self.reports, 1, MOST_REPORTS):
            raise ValueError(f"key must have {KEY_BYTES} bytes for each report, not {len(self.key)}")

    def cohort(self, round: int) -> Users:
        """The user of each slot of a round. In one visit, each user has one in each part of the round."""
        number, place = divmod(round, self._pass)
        if not 0 <= number < (1 if self.one_visit else self.reports):
            needs = f"{self.per_round:,} users who have not reported"
            raise ValueError(f"round {round} needs {needs}; {self.users:,} users are too few")
        first = place * self.per_round
        members = _whole(self, number)[first : first + self.per_round]
        if not self.one_visit:
            return members
        others = (self._shuffled(report, first, members.size) for report in range(1, self.reports))
        return np.concatenate([members, *(members[places] for places in others)])

    def sent(self, round: int) -> int:
        """Return the most reports that a user has sent after a round."""
        return self.reports if self.one_visit else round // self._pass + 1

    @property
    def _pass(self) -> int:
        return self.rounds or self.users // self.per_round

    def _shuffled(self, report: int, first: int, count: int) -> Users:
        """Return a permutation of 0..count-1, by the words from ``first`` on of a report's key."""
        return np.lexsort(self._words(report, first, count))

    def _words(self, report: int, first: int, count: int) -> npt.NDArray[np.uint64]:
        key = self.key[KEY_BYTES * report : KEY_BYTES * (report + 1)]
        keystream, pieces = Keystream(key, first.to_bytes(16, "big")), []  # a block of AES for each user
        for start in range(0, count, _PIECE):
            words = np.empty((2, min(_PIECE, count - start)), "<u8")
            keystream.fill(words.reshape(-1).view(np.uint8))
            pieces.append(words[::-1])
        return np.concatenate(pieces, axis=1).astype(np.uint64, copy=False)


@lru_cache(maxsize=1)
def _whole(order: Order, report: int) -> Users:
    """Return a permutation of all users. The last one is kept for the other rounds of its pass."""
    return order._shuffled(report, 0, order.users)


def secret_order(users: int, per_round: int, *, reports: int = 1, **passes: Any) -> Order:
    """Return an order from the operating system's randomness. Its holder keeps it secret."""
    key = os.urandom(KEY_BYTES * reports)
    return Order(users=users, per_round=per_round, reports=reports, key=key, seeded=False, **passes)


def seeded_order(users: int, per_round: int, seed: int, *, reports: int = 1, **passes: Any) -> Order:
    """Return a repeatable order for simulations: the seed reveals it."""
    about: dict[str, Any] = {"digest_size": KEY_BYTES, "person": b"sqsgd order"}
    start, salts = seed.to_bytes(8, "little"), (report.to_bytes(16, "little") for report in range(reports))
    key = b"".join(hashlib.blake2b(start, salt=salt, **about).digest() for salt in salts)
    return Order(users=users, per_round=per_round, reports=reports, key=key, seeded=True, **passes)


def keep_order(order: Order, out: Path) -> str:
    """Write a secret order where results do not go. Returns the name of its file, which says nothing."""
    content = {name: getattr(order, name) for name in _KEPT} | {"key": order.key.hex()}
    return new_secret(json.dumps(content).encode(), apart_from=out)


def kept_order(name: str) -> Order:
    """Return the order of a run that continues. Raises ValueError if it is not on this machine."""
    try:
        content: dict[str, Any] = json.loads(read_secret(name))
        key = bytes.fromhex(content.pop("key"))
        return Order(**{name: content[name] for name in _KEPT}, key=key, seeded=False)
    except FileNotFoundError:
        raise ValueError(
            f"the secret order of this run's users, {name}, is not in {secret_folder()}: without it users "
            f"could be asked twice. Resume where the run was begun, or set {FOLDER} to where the file is"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{secret_folder() / name} is damaged: {error}") from None
