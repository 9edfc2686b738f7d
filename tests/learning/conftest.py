"""One thread per operation, as in training: with two, a busy second core makes the tests far slower."""

import pytest

from sqsgd.learning.gradients import prepare_torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    prepare_torch()
