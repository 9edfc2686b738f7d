"""Databases for the tests of the service: SQLite, and PostgreSQL where it is installed."""

import contextlib
import itertools

import pytest
from devices import Asking
from postgres_server import MISSING, postgres, programs

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server():
    """A real server for all tests, each of which gets a database of its own."""
    if programs() is None:
        pytest.skip(MISSING)
    with postgres() as server:
        yield server


@pytest.fixture
def new_url(postgres_server):
    """The URL of an empty database."""
    return postgres_server.new_url(f"study{next(_numbers)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    """What a study is created with: nothing, or the URL of an empty database."""
    return "" if request.param == "sqlite" else request.getfixturevalue("new_url")


@pytest.fixture
def asking_of(tmp_path):
    """Makes studies with open databases, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(url="", folder="study", **values):
            asking = Asking(tmp_path / folder, url, **values)
            stack.callback(asking.database.close)
            return asking

        yield make


@pytest.fixture
def asking(asking_of, url):
    """A study of three rounds of four slots, in either database."""
    return asking_of(url)
