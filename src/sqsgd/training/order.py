"""Which user fills which slot of a run in which each user reports once: a random order that nobody knows.

A secret order is kept on the server's own disk, apart from the run's folder, until the run is finished.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd._internal.files import FOLDER, new_secret, read_secret, secret_folder
from sqsgd.core.random import Keystream

Users = npt.NDArray[np.int64]

MOST_USERS = 2**31
KEY_BYTES = 32
_PIECE = 1 << 15  # users whose words are read at once


@dataclass(frozen=True, kw_only=True)
class Order:
    """A permutation of the users, cut into rounds of ``per_round`` slots; the last users may get none.

    Each user has 128 bits of the key's keystream (AES-256); in the order of these bits users fill the slots.
    Two of n are equal with probability below n² / 2^129.

    Guarantees
    ----------
    * Every user has at most one slot: tests/training/test_order.py::test_every_user_has_one_slot.
    * All orders are equally likely: tests/training/test_order.py::test_all_orders_are_equally_likely.
    * The key of ``secret_order`` comes from the operating system, and no text of an order shows it:
      tests/training/test_order.py::test_a_secret_order_comes_from_the_operating_system.
    """

    users: int
    per_round: int
    key: bytes = field(repr=False)
    seeded: bool
    """The key comes from a public seed: a simulation, whose central guarantee protects nobody."""

    def __post_init__(self) -> None:
        checks.integer("users", self.users, 1, MOST_USERS)
        checks.integer("per_round", self.per_round, 1, self.users)
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"key must have {KEY_BYTES} bytes, not {len(self.key)}")

    def cohort(self, round: int) -> Users:
        first, last = round * self.per_round, (round + 1) * self.per_round
        if not 0 <= first < last <= self.users:
            needs = f"{self.per_round:,} users who have not reported"
            raise ValueError(f"round {round} needs {needs}; {self.users:,} users are too few")
        return self._sorted[first:last]

    @cached_property
    def _sorted(self) -> Users:
        return np.lexsort(self._words())

    def _words(self) -> npt.NDArray[np.uint64]:
        keystream, pieces = Keystream(self.key), []
        for start in range(0, self.users, _PIECE):
            words = np.empty((2, min(_PIECE, self.users - start)), "<u8")
            keystream.fill(words.reshape(-1).view(np.uint8))
            pieces.append(words[::-1])
        return np.concatenate(pieces, axis=1).astype(np.uint64, copy=False)


def secret_order(users: int, per_round: int) -> Order:
    """An order from the operating system's randomness; whoever holds it keeps it to themselves."""
    return Order(users=users, per_round=per_round, key=os.urandom(KEY_BYTES), seeded=False)


def seeded_order(users: int, per_round: int, seed: int) -> Order:
    """A repeatable order for simulations: whoever knows the seed knows it."""
    key = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=KEY_BYTES, person=b"sqsgd order").digest()
    return Order(users=users, per_round=per_round, key=key, seeded=True)


def keep_order(order: Order, out: Path) -> str:
    """Write a secret order where results do not go; returns the name of its file, which says nothing."""
    content = {"users": order.users, "per_round": order.per_round, "key": order.key.hex()}
    return new_secret(json.dumps(content).encode(), apart_from=out)


def kept_order(name: str) -> Order:
    """The order of a run that continues; ValueError if it is not on this machine."""
    try:
        content: dict[str, Any] = json.loads(read_secret(name))
        key = bytes.fromhex(content.pop("key"))
        return Order(users=content["users"], per_round=content["per_round"], key=key, seeded=False)
    except FileNotFoundError:
        raise ValueError(
            f"the secret order of this run's users, {name}, is not in {secret_folder()}: without it users "
            f"could be asked twice. Resume where the run was begun, or set {FOLDER} to where the file is"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{secret_folder() / name} is damaged: {error}") from None
