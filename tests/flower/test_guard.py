"""Which apps a node runs: those of its owner's list."""

import contextlib
import hashlib
import inspect
import json
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")

from sqsgd.flower import app_folder, guard

NAMED = hashlib.sha256(b"an app").hexdigest()


def test_what_the_list_names_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "allowed-apps").write_text(f"# mine\n\n{NAMED.upper()}  # by hand\n")
    monkeypatch.setenv(guard.LIST, str(tmp_path / "allowed-apps"))
    guard.check(b"an app")
    with pytest.raises(guard.AppRefused, match=hashlib.sha256(b"another").hexdigest()):
        guard.check(b"another")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, of pathspec
def test_the_installed_app_is_known_by_what_it_is(tmp_path, monkeypatch):
    from flwr.cli.build import build_fab_from_disk

    (tmp_path / "allowed-apps").write_text("installed\n")
    monkeypatch.setenv(guard.LIST, str(tmp_path / "allowed-apps"))
    guard.check(build_fab_from_disk(app_folder()))
    with pytest.raises(guard.AppRefused):
        guard.check(b"an app")


@pytest.mark.parametrize("text", [None, "", "# none\n", f"{NAMED}\neverything\n", f"{NAMED[:-1]}\n", "*\n"])
def test_without_a_good_list_nothing_is_allowed(tmp_path, monkeypatch, text):
    path = tmp_path / "allowed-apps"
    monkeypatch.setenv(guard.LIST, str(path))
    if text is not None:
        path.write_text(text)
    with pytest.raises(guard.AppRefused):
        guard.check(b"an app")
    monkeypatch.delenv(guard.LIST)
    with pytest.raises(guard.AppRefused):
        guard.check(b"an app")


def run_the_guard(monkeypatch, tmp_path):
    """What ``main`` lets Flower unpack, in Flower's order: the input is pulled, its bundle unpacked."""
    import flwr.supernode.cli as command
    import flwr.supernode.runtime.run_clientapp as runtime

    context = SimpleNamespace(node_config={"state-dir": str(tmp_path)})
    unpacked = []
    monkeypatch.setattr(runtime, "pull_task_input", lambda: (None, context))
    monkeypatch.setattr(runtime, "install_from_fab", unpacked.append)
    monkeypatch.setattr(sys, "argv", ["guard"])

    def flwr_clientapp():
        runtime.pull_task_input()
        runtime.install_from_fab(b"another")

    monkeypatch.setattr(command, "flwr_clientapp", flwr_clientapp)
    with contextlib.suppress(guard.AppRefused):
        guard.main()
    return unpacked


def test_what_is_not_allowed_is_not_unpacked_and_is_written_down(tmp_path, monkeypatch):
    (tmp_path / "allowed-apps").write_text(NAMED)
    monkeypatch.setenv(guard.LIST, str(tmp_path / "allowed-apps"))
    assert run_the_guard(monkeypatch, tmp_path) == []
    (line,) = (tmp_path / "refusals.jsonl").read_text().splitlines()
    assert hashlib.sha256(b"another").hexdigest() in json.loads(line)["reason"]


def test_without_its_check_it_would_be_unpacked(tmp_path, monkeypatch):
    """So that the test above is seen to fail on a broken guard."""
    monkeypatch.setattr(guard, "check", lambda content: None)
    assert run_the_guard(monkeypatch, tmp_path) == [b"another"]


def test_flower_unpacks_by_the_name_that_is_replaced_and_before_it_loads():
    """The guard's way in: Flower looks both functions up in its module, once each, in this order."""
    import flwr.supernode.runtime.run_clientapp as runtime

    text = inspect.getsource(runtime.run_clientapp)
    places = [text.index(name) for name in ("pull_task_input(", "install_from_fab(", "load_client_app_fn(")]
    assert places == sorted(places)
    assert text.count("install_from_fab(") == 1
    for elsewhere in ("zipfile", "extractall", "exec("):
        assert elsewhere not in inspect.getsource(runtime)
