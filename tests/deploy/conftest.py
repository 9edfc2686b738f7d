"""Folders of a federation: one that all tests read, and one for each test to write into."""

import pytest
from small_federation import small_federation


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return small_federation(tmp_path_factory.mktemp("made"))


@pytest.fixture
def federation(tmp_path):
    return small_federation(tmp_path)
