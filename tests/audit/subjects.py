"""Schemes to audit, at sizes that take a second."""

from functools import partial

from sqsgd import make_scheme
from sqsgd.audit import Subject


def subject(name, options=None, **changes):
    sizes = {
        "dim": 1000,
        "epsilon": 100.0,
        "bits": 512,
        "budgets": (4.0,),
        "exact_budgets": (4.0,),
        "trials": 1000,
    }
    if options is None:  # most checks of direction mode need its columns
        options = {"code": "signs"} if name in ("sqsgd", "sqsgd-stateless") else {}
    return Subject(name=name, make=partial(make_scheme, name, **options), **{**sizes, **changes})
