"""Runs of these tests find ``tiny``, their model and data, in this process and in others."""

import functools
import os
from pathlib import Path

import pytest

from sqsgd.learning import datasets, features

LOAD, EXTRACT = functools.cache(datasets.load_dataset), functools.cache(features.extracted)


@pytest.fixture(autouse=True, scope="module")
def _tiny_is_importable():
    """And data are loaded once."""
    here = str(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
        patch.syspath_prepend(here)
        patch.setattr(datasets, "load_dataset", LOAD)
        patch.setattr(features, "extracted", EXTRACT)
        yield
