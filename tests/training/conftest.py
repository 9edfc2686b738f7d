"""Runs of these tests find ``tiny``, their model and data, in this process and in others."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def _tiny_is_importable():
    here = str(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
        patch.syspath_prepend(here)
        yield
