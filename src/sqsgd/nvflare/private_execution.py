"""One task at a client: whatever its executor computes, what leaves is one private report."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.logging.constants import ALLOW_LOG_STREAMING_VAR, is_log_streaming_allowed
from nvflare.fuel.utils import fobs

from sqsgd.checks import Vector
from sqsgd.node import reasons
from sqsgd.node.answer import Node
from sqsgd.node.node_state import FolderState
from sqsgd.node.policy import Policy, Refused
from sqsgd.node.structure import Structure
from sqsgd.nvflare import shareables
from sqsgd.nvflare.private_log import private_log

_LOG = logging.getLogger("sqsgd")
Execute = Callable[[str, Shareable, FLContext, Signal], Any]


@final
class PrivateExecution:
    """Takes the place of an executor's ``execute``: ``sqsgd.node.answer.Node`` decides when to call it.

    ``owner``: the owner's configuration, with the keys of a Flower node's.

    Guarantees
    ----------
    * While NVFlare may stream the site's logs to the server, nothing is paid or computed:
      tests/nvflare/test_private_execution.py::test_a_site_that_streams_its_logs_is_refused.
    * From the first task to the end of the job, no federated event, such as metrics, leaves, whichever
      component fires it: tests/nvflare/test_private_execution.py::test_no_event_leaves,
      tests/nvflare/test_simulator.py::test_two_clients.
    * No public property of the context, which NVFlare sends with every message, is the executor's:
      tests/nvflare/test_private_execution.py::test_no_public_property_leaves.
    * Whether and how the executor failed is written to the owner's folder, never to NVFlare's logs:
      tests/nvflare/test_private_execution.py::test_a_failing_executor_tells_nothing.
    """

    def __init__(self, execute: Execute, owner: Mapping[str, object]) -> None:
        self._execute, self._owner = execute, owner
        self._log = _LOG  # until the owner's folder is known; nothing is computed before

    def __call__(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Answer one task. It does not raise: NVFlare would tell the server about it."""
        compute = partial(self._train, task_name, shareable, fl_ctx, abort_signal)
        try:
            return shareables.report(self._answer(shareable, fl_ctx, compute))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            asked = shareables.request_fields(shareable)
            reason = reasons.explain(error, asked, self._owner, self._log)
            _LOG.warning("sqsgd: %s; more is in %s", reason, self._owner.get("state-dir"))
            return shareables.refusal(reason)

    def _answer(
        self, shareable: Shareable, fl_ctx: FLContext, compute: Callable[[Structure, Vector], Vector]
    ) -> bytes:
        fl_ctx.get_engine().fire_and_forget_aux_request = _not_sent
        number = shareables.client_number(fl_ctx.get_identity_name())
        request = shareables.read_request(shareable, number)
        policy = Policy.of(self._owner, simulation=False)
        if policy.state_dir is None:  # Policy requires it outside simulations; the type does not say so
            raise Refused("state-dir is not set")
        self._log = private_log(policy.state_dir)
        _check_logs(fl_ctx)
        node = Node(
            policy=policy,
            state=FolderState(policy.state_dir, policy),
            client=number,
            log=self._log,
            sent_size=lambda payload: len(fobs.dumps(shareables.report(payload))),
        )
        return node.answer(request, shareables.download_of(shareable), compute)

    def _train(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,
        structure: Structure,
        weights: Vector,
    ) -> Vector:
        task_data = shareables.with_model(shareable, structure, weights)  # as checked, whatever was sent
        with _public_properties_kept(fl_ctx):
            result = self._execute(task_name, task_data, fl_ctx, abort_signal)
        return shareables.change_of(result, structure, weights)


@contextlib.contextmanager
def _public_properties_kept(fl_ctx: FLContext) -> Iterator[None]:
    """NVFlare sends a context's public properties to the server with every message: they stay as they are.

    Sticky ones are also kept by the job's manager of contexts, and go into each later context.
    """
    manager = fl_ctx.get_prop(ReservedKey.MANAGER)
    before = {key: dict(entry) for key, entry in fl_ctx.props.items() if fl_ctx.public_key_exists(key)}
    sticky = dict(manager.public_stickers) if manager is not None else {}
    try:
        yield
    finally:
        for key in [key for key in fl_ctx.props if fl_ctx.public_key_exists(key)]:
            del fl_ctx.props[key]
        fl_ctx.props.update(before)
        if manager is not None:
            manager.public_stickers = sticky


def _check_logs(fl_ctx: FLContext) -> None:
    """Raise Refused if the site's logs, in which an executor may write about data, go to the server."""
    if is_log_streaming_allowed(fl_ctx) or _site_streams(fl_ctx):
        raise Refused(
            "NVFlare may stream this site's logs to the server in the clear: set "
            '"allow_log_streaming": false in local/resources.json and restart the client'
        )


def _site_streams(fl_ctx: FLContext) -> bool:
    """Whether the site's own file allows it.

    A job's process takes the first ``resources.json`` below the client's folder, which may be one in the job;
    the client itself, which streams too, started with the site's.
    """
    root = fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)
    path = root and Workspace(root, fl_ctx.get_identity_name()).get_resources_file_path()
    if not path:  # in simulations alone
        return False
    setting = json.loads(Path(path).read_text()).get(ALLOW_LOG_STREAMING_VAR)
    if setting is None:
        setting = os.environ.get(f"NVFLARE_{ALLOW_LOG_STREAMING_VAR}".upper())
    return str(setting).lower() != "false"


def _not_sent(*_: object, **__: object) -> dict[str, object]:
    """In place of the engine's function that sends federated events, which no filter of NVFlare sees.

    For the rest of the job: a trainer in another process may log metrics when its task is done.
    """
    return {}
