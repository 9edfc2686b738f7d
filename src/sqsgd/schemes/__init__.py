"""The table of schemes: one function per algorithm, one row here.

Tests over all rows (tests/schemes) hold what private schemes promise: exact ε (test_privacy.py) and unbiased
estimates (test_estimates.py). Docstrings say where a scheme promises less.
"""

import inspect
from collections.abc import Callable
from types import MappingProxyType

from sqsgd._internal import checks
from sqsgd.core import Scheme
from sqsgd.schemes import (
    clear,
    coordinatewise,
    cpsgd,
    privunit,
    privunit_index,
    sqsgd,
    sqsgd_paper,
    sqsgd_record,
    vqsgd,
)

SCHEMES: MappingProxyType[str, Callable[..., Scheme]] = MappingProxyType(
    {
        "sqsgd": sqsgd.sqsgd,
        "sqsgd-paper": sqsgd_paper.sqsgd_paper,
        "sqsgd-stateless": sqsgd.sqsgd_stateless,
        "sqsgd-record": sqsgd_record.sqsgd_record,
        "fedsgd": clear.fedsgd,
        "piecewise": coordinatewise.piecewise,
        "ldp-fed": coordinatewise.ldp_fed,
        "ldp-fl": coordinatewise.ldp_fl,
        "fedsel": coordinatewise.fedsel,
        "privunit": privunit.privunit,
        "privunit-g": privunit.privunit_g,
        "privunit-inf": sqsgd_paper.privunit_inf,
        "privunit-index": privunit_index.privunit_index,
        "sqkr": sqsgd_paper.sqkr,
        "vqsgd": vqsgd.vqsgd,
        "qsgd": clear.qsgd,
        "terngrad": clear.terngrad,
        "dgc": clear.dgc,
        "cpsgd": cpsgd.cpsgd,
    }
)
"""Every scheme by name, as a function ``(dim, epsilon, bytes, **options) -> Scheme``; read-only.

>>> sorted(SCHEMES)[-3:], SCHEMES["sqsgd"](dim=1000, epsilon=200.0, bytes=128).bits
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
    name: str, *, dim: int, epsilon: float | None = None, bytes: int | None = None, **options: object
) -> Scheme:
    """Create a scheme for vectors of length ``dim`` under a privacy and a communication budget.

    Args:
        name: A name in ``SCHEMES``.
        dim: The length of the vectors.
        epsilon: The privacy budget of a report; private schemes require it, others ignore it.
        bytes: The budget for the packed codes; the envelope and at most one byte for a norm are added.
            Schemes that can send a vector of any size take None as no limit.
        options: Options of the scheme's own function.

    Returns:
        The scheme with the least predicted error within the budgets.

    Raises:
        ValueError: If the name or an option is unknown, a value is out of range, a required budget is
            missing, or ``bytes`` cannot hold the shortest report.

    Guarantees
    ----------
    * Both budgets are kept: tests/schemes/test_contract.py::test_epsilon_is_what_was_asked_for,
      ::test_the_message_has_the_declared_size_and_keeps_the_budget.

    >>> scheme = make_scheme("sqsgd", dim=119850, epsilon=400.0, bytes=256)
    >>> scheme.code_bits, scheme.bits // 8, scheme.privacy.epsilon
    (774, 102, 400.0)
    """
    check_name("name", name)
    parameters = inspect.signature(SCHEMES[name]).parameters
    for budget, given in (("epsilon", epsilon), ("bytes", bytes)):
        if given is None and parameters[budget].default is inspect.Parameter.empty:
            raise ValueError(f"{budget} is missing: {name!r} needs {budget}=..., which has no default")
    known = list(parameters)[3:]
    for option, value in options.items():
        if option not in known:
            takes = ", ".join(known) if known else "none"
            raise ValueError(f"{option} = {value!r}: {name!r} has no such option (options: {takes})")
        if parameters[option].annotation is bool and not isinstance(value, bool):
            raise ValueError(f"{option} = {value!r} must be true or false")
    return SCHEMES[name](dim=dim, epsilon=epsilon, bytes=bytes, **options)
