"""What is used of Flower beyond its documented interface, and the versions that it was tested with.

Flower promises nothing about these names, and a release may move or change them.
`python -m sqsgd.flower.internals` compares the table with the Flower that is installed, and names each that
is gone or takes other arguments; tests/flower/test_internals.py does the same, and checks that no other
module imports anything undocumented. `tools/flower_versions.py` runs the tests with other versions.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OLDEST, NEWEST = (1, 38), (1, 42)
"""The versions of Flower that ``SqsgdMod`` and ``SqsgdStrategy`` were tested with."""
OLDEST_DEPLOYED = (1, 41)
"""The first that ``sqsgd deploy`` was tested with: nodes of 1.39 and before speak gRPC, which the gate does
not forward; 1.40 was not tried."""
DOCUMENTED = (
    "flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp", "flwr.serverapp.strategy",
    "flwr.simulation",
)  # fmt: skip
"""The packages that any module of ``sqsgd.flower`` may import: Flower's documented interface."""


class FlowerChanged(ImportError):
    """A name of Flower's that is used here is gone or has changed."""


@dataclass(frozen=True, kw_only=True)
class Internal:
    """Who uses a name, and with which arguments."""

    user: str
    arguments: tuple[str, ...] = ()


_OBJECTS = "flwr.supercore.inflatable.inflatable_object"
_PULLING = ("object_ids", "pull_object_fn", "backoff_cap", "max_tries_per_object", "max_time")
INTERNALS: Mapping[str, Internal] = {
    # serialised sizes of messages
    f"{_OBJECTS}:get_all_nested_objects": Internal(user="wire", arguments=("obj",)),
    # what a part of an answer is, before it is inflated
    f"{_OBJECTS}:get_object_type_from_object_content": Internal(user="parts", arguments=("object_content",)),
    # how the server's grid fetches the parts of an answer, which is limited here; the second is replaced
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": Internal(user="parts", arguments=_PULLING),
    "flwr.superlink.grid.http_grid:pull_objects": Internal(user="parts", arguments=_PULLING),
    "flwr.supercore.inflatable.inflatable_utils:ObjectPullError": Internal(user="parts"),
    # the one request that removes a message from the SuperLink's store
    "flwr.superlink.grid.http_grid:HttpGrid": Internal(user="store_trimming"),
    "flwr.proto.message_pb2:ConfirmMessageReceivedRequest": Internal(user="store_trimming"),
    # the SuperNode's way from a message to an app; the next four are replaced
    "flwr.supernode.cli:flwr_clientapp": Internal(user="guard"),
    "flwr.supernode.runtime.run_clientapp:pull_task_input": Internal(user="guard", arguments=("client",)),
    "flwr.supernode.runtime.run_clientapp:install_from_fab": Internal(
        user="guard", arguments=("fab_file", "install_dir", "skip_prompt")
    ),
    "flwr.supernode.runtime.run_clientapp:get_project_dir": Internal(
        user="guard", arguments=("fab_id", "fab_version", "fab_hash")
    ),
    "flwr.supernode.runtime.run_clientapp:get_load_client_app_fn": Internal(
        user="guard", arguments=("default_app_ref", "app_path", "multi_app")
    ),
    "flwr.clientapp.client_app:LoadClientAppError": Internal(user="guard"),
    "flwr.supercore.logger:update_console_handler": Internal(
        user="guard", arguments=("timestamps", "colored")
    ),
    # the SuperNode itself: an app's settings, which are read when it arrives, the pauses of its loop, and
    # what repeats its requests
    "flwr.supernode.cli:flower_supernode": Internal(user="supernode"),
    "flwr.supernode.start_client_internal:get_fused_config_from_fab": Internal(
        user="supernode", arguments=("fab_file", "run")
    ),
    "flwr.supernode.start_client_internal:time": Internal(user="supernode"),
    "flwr.supernode.fleet_http_connection:make_simple_http_retry_invoker": Internal(user="supernode"),
    "flwr.common.config:parse_config_args": Internal(user="supernode", arguments=("config",)),
    # the bundle of an app, whose hash owners list
    "flwr.cli.build:build_fab_from_disk": Internal(user="guard", arguments=("app",)),
}
"""Each as ``module:name``. Commands and options are those of deploy/scripts.py and deploy/submission.py;
tests/deploy/test_real_federation.py runs them."""


def internal(name: str) -> Any:
    """One of ``INTERNALS``; raises FlowerChanged, which names it, if Flower has it no more.

    >>> internal("flwr.supercore.inflatable.inflatable_object:get_all_nested_objects").__name__
    'get_all_nested_objects'
    """
    about, (module, _, attribute) = INTERNALS[name], name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise FlowerChanged(
            f"flwr {version()} has no {name}, which sqsgd.flower.{about.user} uses: install a version from "
            f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
        ) from error


def internal_module(name: str) -> Any:
    """The module of one of ``INTERNALS``, in which its name is replaced."""
    internal(name)
    return importlib.import_module(name.partition(":")[0])


def version() -> str:
    """The version of Flower that is installed."""
    return importlib.metadata.version("flwr")


def untested(oldest: tuple[int, int] = OLDEST) -> str:
    """What to say if the installed version of Flower is not among those tested; empty if it is."""
    found = tuple(int(part) if part.isdecimal() else -1 for part in version().split(".")[:2])
    if oldest <= found <= NEWEST:
        return ""
    return f"flwr {version()}: versions {_dotted(oldest)} to {_dotted(NEWEST)} were tested"


def check_deployable() -> None:
    """Raise ValueError unless ``sqsgd deploy`` was tested with the version of Flower that is installed."""
    if problem := untested(OLDEST_DEPLOYED):
        install = f"pip install 'flwr[simulation]>={_dotted(OLDEST_DEPLOYED)},<1.{NEWEST[1] + 1}'"
        raise ValueError(f"{problem} for sqsgd deploy; {install}")


def changes() -> Iterator[str]:
    """What the installed Flower has no more, or takes other arguments."""
    for name, about in INTERNALS.items():
        try:
            found = internal(name)
            parameters = inspect.signature(found).parameters if about.arguments else {}
        except FlowerChanged as error:
            yield str(error)
            continue
        missing = [argument for argument in about.arguments if argument not in parameters]
        if missing:
            taken = f"flwr {version()}: {name} takes no {', '.join(missing)}"
            yield f"{taken}, which sqsgd.flower.{about.user} gives"


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


if __name__ == "__main__":
    found = [*changes(), *filter(None, [untested()])]
    print("\n".join(found) or f"flwr {version()} has all {len(INTERNALS)} names that are used")  # noqa: T201
    sys.exit(bool(found))
