"""The guard of a node: it runs only the Flower apps that its owner lists, and no byte of what a server sends.

A SuperLink sends every node the app to run, as a bundle (a FAB). A node made by ``sqsgd deploy init`` starts
apps through this module. The owner's list ``allowed-apps`` has the SHA-256 of each allowed bundle and the
owner's own folder of that app, which runs if the server sent the same hash.

Guarantees
----------
* An app that is not listed does not run; nothing that a server sends is unpacked.
  tests/deploy/test_real_federation.py::test_an_app_that_is_not_listed_is_refused,
  tests/flower/test_guard.py::test_an_app_that_is_not_listed_is_refused_and_noted
* Without a valid list, or if the folder is no longer what was listed, nothing runs.
  tests/flower/test_guard.py::test_without_a_valid_list_nothing_is_allowed, ::test_a_changed_folder_is_refused
* Whatever a listed app returns or raises, one private report leaves, or one of the fixed errors.
  tests/flower/test_wrapping.py::test_nothing_else_leaves,
  tests/flower/test_guard.py::test_why_an_app_cannot_be_loaded_stays_at_the_node
* A SuperNode whose main thread has ended does not stay alive.
  tests/flower/test_guard.py::test_a_supernode_without_its_main_thread_exits

Names of Flower's that are not documented, and why they are used:

* ``flwr.supernode.runtime.run_clientapp``: ``install_from_fab`` and ``get_load_client_app_fn`` are replaced
  there, because Flower has no setting for who may run code on a node;
* ``flwr.cli.build.build_fab_from_disk``: the bundle of a folder, whose hash owners list;
* ``flwr.clientapp.client_app.LoadClientAppError``: the one error whose text Flower keeps at the node;
* ``ClientApp._mods``: where a listed app may already have a ``SqsgdMod``.
"""

import hashlib
import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

import flwr.clientapp
from flwr.app import Context, Message

from sqsgd.federation.flower import app_folder
from sqsgd.federation.flower.mod import SqsgdMod
from sqsgd.federation.node.policy import note

LIST = "SQSGD_ALLOWED_APPS"  # environment variable with the path of the list of allowed apps
OLDEST, NEWEST = (1, 41), (1, 42)  # the versions of Flower that this was tested with
_RUNTIME = "flwr.supernode.runtime.run_clientapp"


class AppRefused(Exception):
    """The server asked for code that this node's owner does not allow. The text goes to the server."""


def check_version() -> None:
    """Raise ValueError unless it was tested with the installed Flower that apps can be refused."""
    version = importlib.metadata.version("flwr")
    found = tuple(int(part) if part.isdecimal() else -1 for part in version.split(".")[:2])
    if not OLDEST <= found <= NEWEST:
        wanted = f"flwr[simulation]>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
        raise ValueError(f"flwr {version} was not tested with sqsgd deploy: pip install '{wanted}'")


def app_hash(folder: Path) -> str:
    """Return the SHA-256 of an app's bundle."""
    build = importlib.import_module("flwr.cli.build").build_fab_from_disk
    return hashlib.sha256(build(folder)).hexdigest()


def allowed_apps(path: Path) -> dict[str, Path]:
    """Return the folders of the allowed apps by their hashes; ValueError names a line that is wrong."""
    allowed = dict[str, Path]()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        listed, _, folder = line.strip().partition(" ")
        if not listed or listed.startswith("#"):
            continue
        if listed == "installed" and not folder:
            allowed[app_hash(app_folder())] = app_folder()
        elif len(listed) == 64 and set(listed) <= set("0123456789abcdef") and folder.strip():
            allowed[listed] = Path(folder.strip())
        else:
            raise ValueError(f"{path}: line {number} must be `installed` or a SHA-256 and a folder: {line!r}")
    return allowed


def allow(path: Path, folder: Path) -> str:
    """Add an app, exactly as it is now, to the list. Returns its hash."""
    added = app_hash(folder)
    with path.open("a") as file:
        file.write(f"{added} {folder.absolute()}\n")
    return added


def folder_of(sent: str) -> Path:
    """The owner's folder of the app whose bundle has this hash. Raises AppRefused if it must not run."""
    path = os.environ.get(LIST, "")
    try:
        folder = (allowed_apps(Path(path)) if path else {}).get(sent)
        found = folder and app_hash(folder)
    except BaseException as error:  # Flower's reader of a folder also raises click's exceptions
        print(f"no app is allowed: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the node's log
        raise AppRefused("this node's list of allowed apps cannot be used") from None
    if folder is None:
        raise AppRefused(f"this node does not run the app {sent}")
    if found != sent:
        raise AppRefused(f"this node's folder of the app {sent} has changed since it was allowed")
    return folder


@final
class WrappedApp(flwr.clientapp.ClientApp):
    """A listed app, whose answers come from a ``SqsgdMod`` of the node.

    The ``check`` of the app's ``SqsgdMod``, whose outcome is sent unpaid, is used only if the app is
    ``trusted``: the installed ``sqsgd``'s, which looks at no data.
    """

    def __init__(self, app: flwr.clientapp.ClientApp, *, trusted: bool = False) -> None:
        super().__init__()
        own = (mod for mod in app._mods if type(mod) is SqsgdMod and trusted)
        self._app, self._mod = app, SqsgdMod(check=next(own, SqsgdMod()).check, guarded=True)

    def __call__(self, message: Message, context: Context) -> Message:
        return self._mod(message, context, self._app)


def refuse(reason: str, message: Message, context: Context) -> NoReturn:
    """Note and refuse a message, in place of an app that the owner does not allow."""
    folder = context.node_config.get("state-dir")
    if isinstance(folder, str) and Path(folder).is_dir():
        note(Path(folder), "refusals", {"task": "", "round": None, "reason": reason})
    raise AppRefused(reason)


class Guard:
    """Replaces Flower's two steps for the app of a message: unpacking its bundle, and loading it."""

    def __init__(self, runtime: Any) -> None:
        self._sent, self._from_folder = "", runtime.get_load_client_app_fn
        if not callable(runtime.install_from_fab) or not callable(self._from_folder):
            raise TypeError(f"{runtime.__name__} has changed: the guard cannot refuse apps")
        runtime.install_from_fab = self.install
        runtime.get_load_client_app_fn = lambda **_: self.load

    def install(self, content: bytes, **_: Any) -> None:
        self._sent = hashlib.sha256(content).hexdigest()

    def load(self, *names: str) -> Callable[..., Message]:
        """Return the app of the owner's folder; Flower refuses it if the server calls it by other names."""
        try:
            folder = folder_of(self._sent)
        except AppRefused as refusal:
            return partial(refuse, str(refusal))
        try:
            app = self._from_folder(default_app_ref="", app_path=str(folder), multi_app=True)(*names)
            return WrappedApp(app, trusted=folder == app_folder())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # its text may hold data; of this class Flower sends none
            raise importlib.import_module("flwr.clientapp.client_app").LoadClientAppError from error


def _command(name: str) -> Callable[[], None]:
    (found,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    command: Callable[[], None] = found.load()
    return command


def run_supernode(arguments: Sequence[str], start: Callable[[], None] | None = None) -> NoReturn:
    """Run ``flower-supernode`` and exit when it is over.

    If an exception ends the main thread, Python would wait for ever for the thread that serves apps. So the
    process ends here, and systemd, compose or the Procfile starts it again.
    """
    code = 1
    try:
        check_version()
        sys.argv = ["flower-supernode", *arguments]
        (start or _command("flower-supernode"))()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def main() -> None:
    check_version()
    Guard(importlib.import_module(_RUNTIME))
    sys.argv[0] = "flwr-clientapp"  # Flower reads its own name from it
    _command("flwr-clientapp")()


if __name__ == "__main__":
    main()
