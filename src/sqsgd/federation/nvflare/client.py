"""The client's side: whatever an executor computes, what leaves is one private report.

``SqsgdFilter`` is a filter of task data, in the site's ``privacy.json`` or in a job.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.logging.constants import ALLOW_LOG_STREAMING_VAR, is_log_streaming_allowed
from nvflare.fuel.utils import fobs

from sqsgd._internal.checks import Vector
from sqsgd.federation.node.answer import FolderState, Node
from sqsgd.federation.node.policy import MAX_BYTES, Policy, Refused, explain
from sqsgd.federation.node.structure import Structure
from sqsgd.federation.nvflare import shareables

_LOG = logging.getLogger("sqsgd")
Execute = Callable[[str, Shareable, FLContext, Signal], Any]


class SqsgdFilter(Filter):
    """Makes every task of a job end in one private report, or in a refusal.

    NVFlare skips result filters where an executor fails, and the server would learn that it did. So this is a
    filter of task *data*, which puts ``PrivateExecution`` in the place of the executor's ``execute``. Site
    filters come before those of a job: with one in ``privacy.json``, no job can do without it.

    The arguments are the owner's, as in a Flower node's configuration (docs/deploy.md): ``state_dir``,
    ``max_epsilon``, ``max_epsilon_per_report``, ``schemes``, ``require_ledger``, ``witness``, ``max_bytes``.

    Guarantees
    ----------
    * What leaves is one payload or one of a few fixed reasons, whatever the executor returns:
      tests/nvflare/test_client.py::test_nothing_else_leaves. Not covered: how long the executor ran, whether
      it stopped the job (``system_panic``), and what a job's code sends by itself.
    * The ledger is paid, on disk, before the executor is called:
      tests/nvflare/test_client.py::test_paid_before_the_executor_runs,
      ::test_nothing_is_computed_on_a_spent_budget.
    * If the executor fails, the client still sends a paid report, of zero:
      tests/nvflare/test_client.py::test_a_failing_executor_tells_nothing.
    * It covers every task of the job, whichever it is listed for:
      tests/nvflare/test_simulator.py::test_two_clients.
    * In the wrong place the filter blocks everything:
      tests/nvflare/test_client.py::test_in_the_wrong_chain_it_blocks.
    """

    def __init__(
        self,
        state_dir: str,
        max_epsilon: float,
        max_epsilon_per_report: float | None = None,
        schemes: str | None = None,
        require_ledger: bool = False,
        witness: str | None = None,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__()
        # NVFlare writes a job's configuration from attributes that bear the arguments' names.
        self.state_dir, self.max_epsilon, self.schemes = state_dir, max_epsilon, schemes
        self.max_epsilon_per_report, self.max_bytes = max_epsilon_per_report, max_bytes
        self.require_ledger, self.witness = require_ledger, witness

    @property
    def owner(self) -> dict[str, object]:
        """The owner's configuration, as ``node.policy.Policy`` reads it; it checks the values."""
        values = {key: getattr(self, key) for key in inspect.signature(SqsgdFilter).parameters}
        return {key.replace("_", "-"): value for key, value in values.items() if value is not None}

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Guard the executor of this task. If this raises, NVFlare does not call the executor."""
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) != FilterKey.IN or not self._guard(fl_ctx):
            raise RuntimeError("SqsgdFilter must be in task_data_filters of a client, with direction 'in'")
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Guard the executor of any task that the job's configuration names no filter for.

        NVFlare matches the ``tasks`` of a filter by their exact names, ``*`` included, and says nothing.
        """
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            self._guard(fl_ctx)

    def _guard(self, fl_ctx: FLContext) -> bool:
        """Whether the executor of the current task is guarded now; False: it was not found."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        find = getattr(runner, "find_executor", None)
        executor = None if find is None else find(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        if executor is None:
            return False
        if not isinstance(executor.execute, PrivateExecution):
            executor.execute = PrivateExecution(executor.execute, self.owner)
        return True


@final
class PrivateExecution:
    """Takes the place of an executor's ``execute``: ``node.answer.Node`` decides when to call it.

    ``owner``: the owner's configuration, with the keys of a Flower node's.

    Guarantees
    ----------
    * While NVFlare may stream the site's logs to the server, nothing is paid or computed:
      tests/nvflare/test_client.py::test_a_site_that_streams_its_logs_is_refused.
    * From the first task to the end of the job, no federated event, such as metrics, leaves, whichever
      component fires it: tests/nvflare/test_client.py::test_no_event_leaves,
      tests/nvflare/test_simulator.py::test_two_clients.
    * No public property of the context, which NVFlare sends with every message, is the executor's:
      tests/nvflare/test_client.py::test_no_public_property_leaves.
    * Whether and how the executor failed is written to the owner's folder, never to NVFlare's logs:
      tests/nvflare/test_client.py::test_a_failing_executor_tells_nothing.
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
            reason = explain(error, asked, self._owner, self._log)
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


# ---------------------------------------------------------------- the owner's log


def private_log(folder: Path) -> logging.Logger:
    """A logger that writes to ``log.txt`` in ``folder`` and nowhere else: NVFlare streams and shows its own.

    A file of more than 4 MiB becomes ``log.1.txt``, and a new one begins.

    Guarantees
    ----------
    * Nothing reaches the handlers of the process, which are NVFlare's:
      tests/nvflare/test_client.py::test_nothing_reaches_other_handlers.
    * A file that cannot be written raises and prints nothing:
      tests/nvflare/test_client.py::test_no_failure_is_told.
    """
    log = logging.Logger("sqsgd")  # not from getLogger: it has no parent
    log.addHandler(_PrivateFile(folder))
    return log


@final
class _PrivateFile(logging.Handler):
    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._path = folder / "log.txt"
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        # Whether there is anything to log may depend on data; whether it can be written must not be told.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
                self._path.replace(self._path.with_name("log.1.txt"))
            self._path.touch(mode=0o600)
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{self.format(record)}\n")
