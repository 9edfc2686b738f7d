"""Groups of synthetic runs."""

import pytest
from folders import write_run

from sqsgd.report.groups import group_runs
from sqsgd.training.reading import read_runs


@pytest.fixture
def grouped(tmp_path):
    """Groups of the runs with these settings."""

    def make(*settings):
        for number, values in enumerate(settings):
            write_run(tmp_path / f"{number}", **values)
        return group_runs(read_runs([tmp_path])[0])

    return make
