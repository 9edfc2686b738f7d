"""What a report guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Notion = Literal["local", "per-weight", "central", "none"]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy guarantee of one report.

    ``notion`` is ``"local"`` (ε-LDP of the whole report, replace-one, against the server itself),
    ``"per-weight"`` (the same between vectors that differ in one coordinate), ``"central"`` (of the sum
    of reports, under secure aggregation) or ``"none"``.

    Guarantees
    ----------
    * ``epsilon`` is never above the requested one:
      tests/schemes/test_contract.py::test_epsilon_is_what_was_asked_for.

    >>> from sqsgd import make_scheme
    >>> make_scheme("sqsgd", dim=1000, epsilon=50.0, bytes=64).privacy
    Privacy(epsilon=50.0, notion='local', delta=0.0)
    >>> make_scheme("fedsgd", dim=1000).privacy
    Privacy(epsilon=inf, notion='none', delta=0.0)
    """

    epsilon: float
    notion: Notion
    delta: float = 0.0
    arithmetic: Literal["exact", "real"] = field(default="exact", repr=False)
    """``"real"``: ε is proved in real arithmetic only, and the report is drawn with floats."""

    @property
    def is_private(self) -> bool:
        """Whether anything is guaranteed."""
        return self.notion != "none"

    @property
    def is_pure_local(self) -> bool:
        """Pure ε-LDP of the whole report: the only guarantee that ledgers and nodes accept."""
        return self.notion == "local" and self.delta == 0

    @property
    def protects_single_reports(self) -> bool:
        """Whether the guarantee holds against a server that sees each report by itself."""
        return self.notion in ("local", "per-weight")


NOT_PRIVATE = Privacy(epsilon=math.inf, notion="none")
