"""Shorter tallies where a test is about another check."""

import pytest

from sqsgd.audit import tally

ABOUT_THE_TALLY = ("test_tally", "test_tally_inputs", "test_audit_mutants")


@pytest.fixture(autouse=True)
def short_tallies(request, monkeypatch):
    """Most audits here are of mechanisms that another check must catch."""
    if request.module.__name__ not in ABOUT_THE_TALLY:
        monkeypatch.setattr(tally, "_FEWEST", 40)
