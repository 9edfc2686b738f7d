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
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqsgd.flower import app_folder
from sqsgd.flower.internals import internal, internal_module, untested
from sqsgd.node.notes import note

LIST = "SQSGD_ALLOWED_APPS"
"""Environment variable with the path of the list of allowed apps."""


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
    """Raise AppRefused unless the owner allows this bundle."""
    found, path = hashlib.sha256(content).hexdigest(), os.environ.get(LIST, "")
    try:
        allowed = allowed_hashes(Path(path)) if path else set()
    except (OSError, ValueError) as error:
        print(f"no app is allowed: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the node's log
        allowed = set()
    if found not in allowed:
        raise AppRefused(f"this node does not run the app {found}")


def main() -> None:
    """Run Flower's own command, with the check before an app is unpacked."""
    if problem := untested():
        sys.exit(f"{problem}: no app is run, for it is not known that this version asks the guard")
    command: Any = internal_module("flwr.supernode.cli:flwr_clientapp")
    runtime: Any = internal_module("flwr.supernode.runtime.run_clientapp:install_from_fab")
    pull: Callable[..., Any] = runtime.pull_task_input
    install: Callable[..., Any] = runtime.install_from_fab
    pulled: list[Any] = []

    def pull_and_remember(*arguments: Any) -> Any:
        pulled[:] = pull(*arguments)
        return tuple(pulled)

    def install_if_allowed(content: bytes, *arguments: Any, **options: Any) -> Any:
        try:
            check(content)
        except AppRefused as refusal:
            _, context, *_ = pulled
            _note(context.node_config, str(refusal))
            raise
        return install(content, *arguments, **options)

    runtime.pull_task_input = pull_and_remember
    runtime.install_from_fab = install_if_allowed
    internal("flwr.supercore.logger:update_console_handler")(timestamps=True, colored=sys.stderr.isatty())
    sys.argv[0] = "flwr-clientapp"  # Flower reads its own name from it
    command.flwr_clientapp()


def _note(node_config: dict[str, Any], reason: str) -> None:
    """Note a refusal where ``sqsgd deploy status`` finds it."""
    folder = node_config.get("state-dir")
    if isinstance(folder, str) and Path(folder).is_dir():
        note(Path(folder), "refusals", {"task": "", "round": None, "reason": reason})


if __name__ == "__main__":
    main()
