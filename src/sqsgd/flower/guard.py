"""Flower's ``flwr-clientapp``, but only for apps that the node's owner allows.

A SuperLink sends every node the app to run, as a bundle (a FAB). Flower can require signatures
(``--trusted-entities``), but its open-source SuperLink cannot deliver any, so such a node runs nothing.
Without the guard, anyone who can submit an app can run any code on every node, and nothing protects the data
from that code. A node made by ``sqsgd deploy init`` starts apps through this module instead
(``bin/flwr-clientapp`` in its folder): the bundle's SHA-256 must be listed in ``allowed-apps``.

Guarantees
----------
* An app that is not listed is never unpacked, and none of it runs; the node notes the refusal.
  tests/deploy/test_real_federation.py::test_a_node_refuses_code_that_its_owner_did_not_allow
* Without a valid list, nothing runs.
  tests/flower/test_guard.py::test_without_a_good_list_nothing_is_allowed
* What runs is what was unpacked from the bundle, in a new folder for each message: whatever name and version
  the server gives it, no other folder is loaded.
  tests/flower/test_guard.py::test_no_other_folder_is_loaded
* A listed app that is not private by itself answers with a private report, unless the owner decides
  otherwise (``wrap-apps=false``); why it cannot be loaded is not told to the server.
  tests/flower/test_guard.py::test_an_app_without_the_mod_sends_only_a_report,
  ::test_why_an_app_cannot_be_loaded_stays_at_the_node
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqsgd.flower import app_folder
from sqsgd.flower.bundles import BadBundle, check_bundle
from sqsgd.flower.internals import OLDEST_DEPLOYED, internal, internal_module, untested
from sqsgd.node.policy import note

LIST = "SQSGD_ALLOWED_APPS"
"""Environment variable with the path of the list of allowed apps."""
WRAP = "wrap-apps"
"""The owner's setting: put ``SqsgdMod`` around every app."""
UNREAD = "sqsgd-unread"
"""In an app's settings: they were not read, because the app was not allowed when its run began."""


class AppRefused(Exception):
    """The server sent code that this node's owner did not allow. The text goes to the server."""


def app_hash(folder: Path) -> str:
    """The SHA-256 of an app's bundle, as a SuperLink sends it."""
    return hashlib.sha256(internal("flwr.cli.build:build_fab_from_disk")(folder)).hexdigest()


def allowed_hashes(path: Path) -> set[str]:
    """The hashes in a list of allowed apps; raises ValueError naming an invalid line."""
    allowed = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].strip().lower()
        if words == "installed":
            allowed.add(app_hash(app_folder()))
        elif len(words) == 64 and set(words) <= set("0123456789abcdef"):
            allowed.add(words)
        elif words:
            raise ValueError(f"{path}: line {number} must be `installed` or 64 hexadecimal digits: {line!r}")
    return allowed


def check(content: bytes) -> None:
    """Raise AppRefused unless the owner allows this bundle and it can be unpacked safely."""
    found, path = hashlib.sha256(content).hexdigest(), os.environ.get(LIST, "")
    try:
        allowed = allowed_hashes(Path(path)) if path else set()
    except (OSError, ValueError) as error:
        print(f"no app is allowed: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the node's log
        allowed = set()
    if found not in allowed:
        raise AppRefused(f"this node does not run the app {found}")
    try:
        check_bundle(content)
    except BadBundle as error:
        raise AppRefused(f"this node does not unpack the app {found}: {error}") from None


def wraps_apps(node_config: Mapping[str, Any]) -> bool:
    """The owner's setting; true if it is not set. Raises AppRefused if it is neither true nor false."""
    value = node_config.get(WRAP, True)
    if not isinstance(value, bool):
        raise AppRefused(f"this node's {WRAP} = {value!r} must be true or false")
    return value


class Guard:
    """Stands between Flower's steps for one message: pull its input, unpack its app, load it."""

    def __init__(self, runtime: Any, place: Path) -> None:
        """``runtime``: Flower's module; ``place``: an empty folder for this message's app."""
        self._pull, self._install = runtime.pull_task_input, runtime.install_from_fab
        self._folder_of, self._loader = runtime.get_project_dir, runtime.get_load_client_app_fn
        self._place, self._config, self._unread, self._installed = place, dict[str, Any](), False, Path()
        self._trusted = False
        runtime.pull_task_input, runtime.install_from_fab = self.pull, self.install
        runtime.get_project_dir, runtime.get_load_client_app_fn = self.folder_of, self.loader

    def pull(self, *arguments: Any) -> Any:
        """As Flower does it; remembers the owner's settings."""
        message, context, *more = self._pull(*arguments)
        self._config, self._unread = context.node_config, UNREAD in context.run_config
        return message, context, *more

    def install(self, content: bytes, **_: Any) -> Path:
        """Unpack the app if it is allowed, into a folder where no app was before."""
        try:
            check(content)
            wraps_apps(self._config)
            if self._unread:
                raise AppRefused("the app was not allowed when its run began: start another run")
        except AppRefused as refusal:
            self._note(str(refusal))
            raise
        self._trusted = hashlib.sha256(content).hexdigest() == app_hash(app_folder())
        self._installed = self._install(content, install_dir=self._place, skip_prompt=True)
        return self._installed

    def folder_of(self, *names: str) -> Path:
        """Where the app was unpacked. The server's names for it can only agree."""
        named = self._folder_of(*names)
        if named.name != self._installed.name or ".." in named.parts:
            reason = f"the server calls the app {named.name!r}, and sent {self._installed.name!r}"
            self._note(reason)
            raise AppRefused(reason)
        return self._installed

    def loader(self, **_: Any) -> Any:
        """Flower's own function for a folder that is given, and the owner's mod around what it loads."""
        load = self._loader(default_app_ref="", app_path=str(self._installed), multi_app=True)

        def load_here(*names: str) -> Any:
            from sqsgd.flower.guard import WrappedApp

            try:
                app = load(*names)
                return WrappedApp(app, trusted=self._trusted) if wraps_apps(self._config) else app
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # its text may hold data; of this class Flower sends none
                raise internal("flwr.clientapp.client_app:LoadClientAppError") from error

        return load_here

    def _note(self, reason: str) -> None:
        """Note a refusal where ``sqsgd deploy status`` finds it."""
        folder = self._config.get("state-dir")
        if isinstance(folder, str) and Path(folder).is_dir():
            note(Path(folder), "refusals", {"task": "", "round": None, "reason": reason})


def check_version() -> None:
    """Exit unless this is a version of Flower of which it was tested that apps can be refused."""
    if problem := untested(OLDEST_DEPLOYED):
        sys.exit(f"{problem} with the guard, so this node runs no app")


def main() -> None:
    """Run Flower's own command, guarded."""
    check_version()
    command = internal_module("flwr.supernode.cli:flwr_clientapp")
    runtime = internal_module("flwr.supernode.runtime.run_clientapp:install_from_fab")
    internal("flwr.supercore.logger:update_console_handler")(timestamps=True, colored=sys.stderr.isatty())
    sys.argv[0] = "flwr-clientapp"  # Flower reads its own name from it
    with tempfile.TemporaryDirectory(prefix="sqsgd-app-") as place:
        Guard(runtime, Path(place))
        command.flwr_clientapp()


if __name__ == "__main__":
    main()
