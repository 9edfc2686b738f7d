"""The Task: what the server asks of one client in one round."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from sqsgd import checks
from sqsgd.randomness import EVERYONE, PublicStream

MOST_DIM = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the server asks of one client in one round. All of it is public.

    ``bound`` is U_t, the mechanism's range. ``clip`` is C_t, the l2 radius that vectors are clipped to first
    (None: no clipping).

    >>> Task(round=0, client=3, seed=1234, dim=119850, bound=10.0).dim
    119850
    """

    round: int
    client: int
    seed: int
    dim: int
    bound: float
    clip: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__  # plain Python numbers: kernels are compiled for one type
        put(self, "round", checks.integer("round", self.round, 0, 2**32 - 1))
        put(self, "client", checks.integer("client", self.client, 0, EVERYONE - 1))
        put(self, "seed", checks.integer("seed", self.seed, 0, 2**64 - 1))
        put(self, "dim", checks.integer("dim", self.dim, 1, MOST_DIM))
        put(self, "bound", checks.real("bound", self.bound, 1e-9, 1e30))
        if self.clip is not None:
            put(self, "clip", checks.real("clip", self.clip, 1e-9, 1e30))

    def stream(self, purpose: str, *, shared: bool) -> PublicStream:
        """The public stream for a purpose: the client's, or the one that all clients share."""
        client = EVERYONE if shared else self.client
        return PublicStream(seed=self.seed, round=self.round, client=client, purpose=purpose)

    @cached_property
    def binding(self) -> bytes:
        """The task as bytes. A report's checksum covers them, so it is valid for no other task."""
        return struct.pack(
            "<IQQQdd", self.round, self.client, self.seed, self.dim, self.bound, self.clip or 0.0
        )
