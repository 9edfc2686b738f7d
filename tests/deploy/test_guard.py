"""Which apps a node runs: those of its owner's list."""

import hashlib

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
