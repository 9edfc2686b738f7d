"""What a report promises."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What one report promises.

    ``notion`` is ``"local"`` (ε-LDP of the whole report, replace-one, against the server itself),
    ``"per-weight"``, ``"central"`` or ``"none"``.

    Guarantees
    ----------
    * What a scheme states here is never above what was asked for:
      tests/schemes/test_contract.py::test_epsilon_is_what_was_asked_for.

    >>> from sqsgd import make_scheme
    >>> make_scheme("sqsgd", dim=1000, epsilon=50.0, bits=512).privacy
    Privacy(epsilon=50.0, notion='local', delta=0.0)
    >>> make_scheme("fedsgd", dim=1000).privacy
    Privacy(epsilon=inf, notion='none', delta=0.0)
    """

    epsilon: float
    notion: str
    delta: float = 0.0


NOT_PRIVATE = Privacy(epsilon=math.inf, notion="none")
