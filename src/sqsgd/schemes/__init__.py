"""The table of schemes: one file an algorithm, one row here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from types import MappingProxyType

from sqsgd.core import Scheme
from sqsgd.schemes.fedsgd import fedsgd
from sqsgd.schemes.sqsgd import sqsgd, sqsgd_stateless
from sqsgd.schemes.sqsgd_paper import sqsgd_paper

SCHEMES: MappingProxyType[str, Callable[..., Scheme]] = MappingProxyType(
    {
        "sqsgd": sqsgd,
        "sqsgd-paper": sqsgd_paper,
        "sqsgd-stateless": sqsgd_stateless,
        "fedsgd": fedsgd,
    }
)


def make_scheme(
    name: str, *, dim: int, epsilon: float | None = None, bits: int | None = None, **options: object
) -> Scheme:
    """A scheme by name for vectors of length ``dim`` under a privacy and a communication budget.

    ``bits`` counts the packed codes; the envelope (16 bytes) and at most one byte for a norm come on
    top. Schemes without privacy ignore both budgets. ``options`` are those of the scheme's function.

    >>> scheme = make_scheme("sqsgd", dim=119850, epsilon=400.0, bits=2048)
    >>> scheme.code_bits, scheme.bits // 8, scheme.privacy.epsilon
    (2048, 273, 400.0)
    """
    if not isinstance(name, str) or name not in SCHEMES:
        close = difflib.get_close_matches(str(name), SCHEMES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"name = {name!r} is no scheme{hint} (there are {', '.join(SCHEMES)})")
    known = list(inspect.signature(SCHEMES[name]).parameters)[3:]
    for option in options:
        if option not in known:
            takes = ", ".join(known) if known else "none"
            raise ValueError(f"{option} = {options[option]!r} is no option of {name!r} (it takes {takes})")
    return SCHEMES[name](dim=dim, epsilon=epsilon, bits=bits, **options)
