"""Runs of these tests find ``tiny``, their model and data, in this process and in others."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _tiny_is_importable(monkeypatch):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)
    monkeypatch.syspath_prepend(here)
