"""Makes helpers in other test folders importable; lists the slow tests."""

import sys
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest

SHARED = (
    ".", "internal", "core", "schemes", "deploy", "report", "privacy", "audit", "training", "flower", "node",
    "clients", "collect",
)  # fmt: skip
sys.path[:0] = [str(Path(__file__).parent / name) for name in SHARED]
pytest.register_assert_rewrite("federation")  # a helper with assertions, in flower
# the second: an app that only nodes import; the third imports nvflare, which not everyone has
collect_ignore = ["conftest.py", "nvflare/flare.py"]
collect_ignore_glob = ["*/conftest.py"]  # two of the same name stop a run of two folders

SLOW = (
    "privacy/test_certificate.py::test_the_whole_range",
    "privacy/test_document.py",
    "privacy/test_passes.py",
    "cli/test_cli_audit.py",
    "clients/",
    "cli/test_collect.py",
    "cli/test_deploy.py",
    "cli/test_train.py::test_the_summary_ends",
    "flower/",
    "node/",
    "nvflare/",
    "deploy/",
    "collect/",
    "audit/",
    "report/test_browser.py",
    "schemes/test_clear_schemes.py",
    "schemes/test_coordinatewise.py",
    "schemes/test_cpsgd.py",
    "schemes/test_estimates.py",
    "schemes/test_fedsel.py",
    "schemes/test_privacy.py::test_a_norm_sent",
    "schemes/test_privacy.py::test_what_is_sent",
    "schemes/test_sqsgd.py::test_sparse",
    "test_adding_a_scheme.py",
    "mechanisms/test_binomial.py",
    "mechanisms/test_privquant.py::test_broken_samplers",
    "mechanisms/test_privquant.py::test_vectors_in_several_pieces",
    "cli/test_main.py",
    "benchmarks/",
    "test_examples.py",
    "test_packaging.py",
    "privacy/test_planner.py",
    "test_snippets.py",
    "training/test_order.py",
    "training/test_python_api.py",
    "training/test_record_runs.py",
    "training/test_rates.py",
    "training/test_run_folder.py",
    "training/test_runs",
    "training/test_summary.py",
    "training/test_sweep.py",
)
"""Prefixes of slow tests, below tests/: most of the time is spent in these, by --durations."""


FIRST = ("deploy/", "flower/test_simulation", "flower/test_example", "test_packaging", "test_snippets")
"""The longest files: they start first, so that no worker is left with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and begin with the longest."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not item.nodeid.removeprefix("tests/").startswith(FIRST))


@pytest.fixture(scope="session", autouse=True)
def _secrets_apart(tmp_path_factory):
    """Secrets of runs go to a folder of the tests, in this process and in those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQSGD_PRIVATE", str(tmp_path_factory.mktemp("private")))
        yield


@pytest.fixture
def one_process(monkeypatch):
    """Sweeps train in this process, because others would have to load torch first."""
    from sqsgd.runs import sweep

    class Here(Executor):
        def __init__(self, _jobs, _context, _begin, shared):
            sweep._rounds, sweep._stopping = shared

        def submit(self, job, *arguments):
            future = Future()
            future.set_result(job(*arguments))
            return future

    for name in ("_rounds", "_stopping"):
        monkeypatch.setattr(sweep, name, None, raising=False)
    monkeypatch.setattr(sweep, "ProcessPoolExecutor", Here)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A real browser, for the pages."""
    from chromium import Chromium, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium, or name one in $SQSGD_CHROMIUM")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()
