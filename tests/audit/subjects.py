"""Schemes to audit, at sizes that take a second, and what the audit finds in them."""

import dataclasses
from functools import partial

from sqsgd import SCHEMES, make_scheme
from sqsgd.audit import Subject, steps

SIZES = {"dim": 1000, "epsilon": 100.0, "bytes": 64, "trials": 1000}
SIZES |= {"budgets": (4.0,), "exact_budgets": (4.0,)}
SIGNS = {"code": "signs"}
PAPER = {"levels": 8, "rule": "optimal"}
NOTIONS = {name: make_scheme(name, dim=64, epsilon=8.0, bytes=64).privacy.notion for name in SCHEMES}
LOCAL = [name for name, notion in NOTIONS.items() if notion == "local"]


def subject(name, options=None, **changes):
    if options is None:  # most checks of direction mode need its columns
        options = SIGNS if name in ("sqsgd", "sqsgd-stateless") else {}
    return Subject(name=name, make=partial(make_scheme, name, **options), **{**SIZES, **changes})


def broken(change, name="sqsgd", **options):
    """A factory of schemes whose mechanism is passed through ``change``, or replaced by that class."""
    options = options or (SIGNS if name == "sqsgd" else {})

    def make(*, dim, epsilon, bytes):
        scheme = make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes, **options)
        mechanism = scheme.mechanism
        parts = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
        mechanism = change(**parts) if isinstance(change, type) else change(mechanism) or mechanism
        return dataclasses.replace(scheme, mechanism=mechanism)

    make.__name__ = change.__name__
    return make


def remade(kind):
    """A factory of ``sqsgd`` as another class of scheme."""

    def make(*, dim, epsilon, bytes):
        scheme = make_scheme("sqsgd", dim=dim, epsilon=epsilon, bytes=bytes, **SIGNS)
        return kind(**{field.name: getattr(scheme, field.name) for field in dataclasses.fields(scheme)})

    make.__name__ = kind.__name__
    return make


def caught(make, *names, **changes):
    """The checks that a scheme violates, in the steps of these names, or in all."""
    sizes = {**SIZES, "dim": 3000, "epsilon": 150.0, "bytes": 192, "trials": 2000, **changes}
    case = Subject(name="broken", make=make, **sizes)
    run = [step for step in steps(case) if step.name in (names or (step.name,))]
    assert len(run) >= len(names)
    return {found.name for step in run for found in step.findings(case) if found.outcome == "violated"}
