"""A simulated node's state in Flower's own memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import final

from flwr.app import ConfigRecord, Context

from sqsgd.core import Scheme
from sqsgd.node.node_state import Kept, NodeState
from sqsgd.node.policy import Policy, Refused
from sqsgd.node.request import Request

_RECORD = "sqsgd.state"


@final
class ContextState(NodeState):
    """``context.state``, for simulations: it is lost when the run ends."""

    def __init__(self, context: Context, policy: Policy) -> None:
        self._context, self._policy = context, policy

    def _record(self) -> ConfigRecord:
        record = self._context.state.setdefault(_RECORD, ConfigRecord())
        assert isinstance(record, ConfigRecord)  # noqa: S101
        return record

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def read(self, name: str) -> Kept | None:
        content = self._record().get(f"kept {name}")
        return Kept.from_bytes(content) if isinstance(content, bytes) else None

    def write(self, kept: Kept) -> None:
        self._record()[f"kept {kept.name}"] = kept.to_bytes()

    def pay(self, scheme: Scheme, request: Request) -> None:
        record, max_epsilon = self._record(), self._policy.max_epsilon
        spent = Fraction(str(record.get("spent", "0"))) + Fraction(scheme.privacy.epsilon)
        if spent > max_epsilon:
            raise Refused(f"epsilon {float(spent):g} would be spent, above max-epsilon = {max_epsilon:g}")
        record["spent"] = str(spent)
