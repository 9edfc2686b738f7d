"""The table of schemes: one file per algorithm, one row here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MappingProxyType

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.schemes.cpsgd import cpsgd
from sqsgd.schemes.dgc import dgc
from sqsgd.schemes.fedsel import fedsel
from sqsgd.schemes.fedsgd import fedsgd
from sqsgd.schemes.ldp_fed import ldp_fed
from sqsgd.schemes.ldp_fl import ldp_fl
from sqsgd.schemes.piecewise import piecewise
from sqsgd.schemes.privunit import privunit
from sqsgd.schemes.privunit_g import privunit_g
from sqsgd.schemes.privunit_index import privunit_index
from sqsgd.schemes.privunit_inf import privunit_inf
from sqsgd.schemes.qsgd import qsgd
from sqsgd.schemes.sqkr import sqkr
from sqsgd.schemes.sqsgd import sqsgd, sqsgd_stateless
from sqsgd.schemes.sqsgd_paper import sqsgd_paper
from sqsgd.schemes.terngrad import terngrad
from sqsgd.schemes.vqsgd import vqsgd

SCHEMES: MappingProxyType[str, Callable[..., Scheme]] = MappingProxyType(
    {
        "sqsgd": sqsgd,
        "sqsgd-paper": sqsgd_paper,
        "sqsgd-stateless": sqsgd_stateless,
        "fedsgd": fedsgd,
        "piecewise": piecewise,
        "ldp-fed": ldp_fed,
        "ldp-fl": ldp_fl,
        "fedsel": fedsel,
        "privunit": privunit,
        "privunit-g": privunit_g,
        "privunit-inf": privunit_inf,
        "privunit-index": privunit_index,
        "sqkr": sqkr,
        "vqsgd": vqsgd,
        "qsgd": qsgd,
        "terngrad": terngrad,
        "dgc": dgc,
        "cpsgd": cpsgd,
    }
)
"""Every scheme by name, as a function ``(dim, epsilon, bits, **options) -> Scheme``; read-only.

>>> sorted(SCHEMES)[-3:], SCHEMES["sqsgd"](dim=1000, epsilon=200.0, bits=1024).bits
(['sqsgd-stateless', 'terngrad', 'vqsgd'], 408)
"""

STATELESS = ("privunit-index", "sqsgd-stateless", "privunit")
"""Schemes that send a whole vector in one report near the optimal error: those that the planner compares."""


def check_name(key: str, name: object) -> None:
    """Raise ValueError unless a scheme has this name; ``key`` names the setting in the message."""
    if not isinstance(name, str) or name not in SCHEMES:
        hint = checks.meant(name, SCHEMES)
        raise ValueError(f"{key} = {name!r} is not a known scheme{hint} (known: {', '.join(SCHEMES)})")


def make_scheme(
    name: str, *, dim: int, epsilon: float | None = None, bits: int | None = None, **options: object
) -> Scheme:
    """A scheme by name for vectors of length ``dim`` under a privacy and a communication budget.

    ``bits`` counts the packed codes; the envelope (16 bytes) and at most one byte for a norm are added.
    Schemes without privacy ignore ``epsilon``. ``options`` are those of the scheme's function.

    Guarantees
    ----------
    * ``privacy.epsilon`` of the scheme is at most ``epsilon``:
      tests/schemes/test_contract.py::test_epsilon_is_what_was_asked_for.
    * The codes take at most ``bits``:
      tests/schemes/test_contract.py::test_the_message_has_the_declared_size_and_keeps_the_budget.

    >>> scheme = make_scheme("sqsgd", dim=119850, epsilon=400.0, bits=2048)
    >>> scheme.code_bits, scheme.bits // 8, scheme.privacy.epsilon
    (774, 102, 400.0)
    """
    check_name("name", name)
    parameters = inspect.signature(SCHEMES[name]).parameters
    known = list(parameters)[3:]
    for option in options:
        if option not in known:
            takes = ", ".join(known) if known else "none"
            raise ValueError(
                f"{option} = {options[option]!r}: {name!r} has no such option (options: {takes})"
            )
        if parameters[option].annotation == "bool" and not isinstance(options[option], bool):
            raise ValueError(f"{option} = {options[option]!r} must be true or false")
    return SCHEMES[name](dim=dim, epsilon=epsilon, bits=bits, **options)
