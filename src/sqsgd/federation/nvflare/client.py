"""The client's side: one private report leaves, for any result of an executor.

``SqsgdFilter`` is a filter of task data, in the site's ``privacy.json`` or in a job. The server sends the
workflow's own task data with the request in one header, to which each client adds its number. A client sends
one ``bytes`` payload, or one of the fixed reasons of federation/node/policy.py.
"""

import contextlib
import hashlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, final

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.logging.constants import ALLOW_LOG_STREAMING_VAR, is_log_streaming_allowed

from sqsgd._internal.checks import Vector
from sqsgd.federation.node.answer import Compute, FolderState, Node
from sqsgd.federation.node.policy import MAX_BYTES, Policy, Refused, explain
from sqsgd.federation.node.records import asked_for_records
from sqsgd.federation.node.request import MalformedRequest, NotAsked, Request
from sqsgd.federation.node.structure import Arrays, Structure

_LOG = logging.getLogger("sqsgd")
REQUEST, REPORT, REASON = "sqsgd.request", "sqsgd.report", "sqsgd.reason"
Execute = Callable[[str, Shareable, FLContext, Signal], Any]


class SqsgdFilter(Filter):
    """Makes every task of a job end in one private report, or in a refusal.

    NVFlare skips result filters where an executor fails, and the server would learn of it. So this filter of
    task *data* puts ``PrivateExecution`` in the place of the executor's ``execute``. With one in a site's
    ``privacy.json``, no job can do without it. The arguments are the owner's, as in docs/deploy.md.

    Guarantees
    ----------
    * What leaves is one payload or one of a few fixed reasons, except what a job's code sends by itself,
      how long it ran, and ``system_panic``: tests/nvflare/test_client.py::test_nothing_else_leaves.
    * The ledger is paid, on disk, before the executor is called, and if it fails, zero is reported:
      tests/nvflare/test_client.py::test_paid_before_the_executor_runs,
      ::test_nothing_is_computed_on_a_spent_budget, ::test_a_failing_executor_tells_nothing.
    * It covers every task of the job: tests/nvflare/test_simulator.py::test_two_clients.
    * In the wrong place it blocks: tests/nvflare/test_client.py::test_in_the_wrong_chain_it_blocks.
    """

    def __init__(
        self,
        state_dir: str,
        max_epsilon: float | None = None,
        max_epsilon_per_report: float | None = None,
        schemes: str | None = None,
        require_ledger: bool = False,
        witness: str | None = None,
        max_bytes: int | None = None,
        max_epsilon_per_record: float | None = None,
        delta: float | None = None,
    ) -> None:
        super().__init__()
        # NVFlare writes a job's configuration from attributes that bear the arguments' names.
        self.state_dir, self.max_epsilon, self.schemes = state_dir, max_epsilon, schemes
        self.max_epsilon_per_report, self.max_bytes = max_epsilon_per_report, max_bytes
        self.require_ledger, self.witness = require_ledger, witness
        self.max_epsilon_per_record, self.delta = max_epsilon_per_record, delta

    @property
    def owner(self) -> dict[str, object]:
        """The owner's configuration, as ``Policy`` reads it."""
        values = {key: getattr(self, key) for key in inspect.signature(SqsgdFilter).parameters}
        return {key.replace("_", "-"): value for key, value in values.items() if value is not None}

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Guard the executor of this task. If this raises, NVFlare does not call the executor."""
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) != FilterKey.IN or not self._guard(fl_ctx):
            raise RuntimeError("SqsgdFilter must be in task_data_filters of a client, with direction 'in'")
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Guard the executor of any task, even if the filter is not listed for it."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            self._guard(fl_ctx)

    def _guard(self, fl_ctx: FLContext) -> bool:
        """Return whether the executor of the current task is guarded now; False: it was not found."""
        find = getattr(fl_ctx.get_prop(FLContextKey.RUNNER), "find_executor", lambda _: None)
        executor = find(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        if executor is None:
            return False
        if not isinstance(executor.execute, PrivateExecution):
            executor.execute = PrivateExecution(executor.execute, self.owner)
        return True


@final
class PrivateExecution:
    """Takes the place of an executor's ``execute``: ``Node`` decides when to call it.

    Guarantees
    ----------
    * While NVFlare may stream the site's logs to the server, nothing is paid or computed:
      tests/nvflare/test_client.py::test_a_site_that_streams_its_logs_is_refused.
    * From the first task to the end of the job, no federated event, such as metrics, leaves:
      tests/nvflare/test_client.py::test_no_event_leaves, tests/nvflare/test_simulator.py::test_two_clients.
    * No public property is the executor's: tests/nvflare/test_client.py::test_no_public_property_leaves.
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

        def compute(structure: Structure, weights: Vector) -> Vector:
            model = DXO(DataKind.WEIGHTS, data=structure.sent(weights))  # as checked, for any task
            with _public_properties_kept(fl_ctx):
                result = self._execute(task_name, model.update_shareable(shareable), fl_ctx, abort_signal)
            if asked_for_records():
                return weights
            return change_of(result, structure, weights)

        try:
            return Shareable({REPORT: self._answer(shareable, fl_ctx, compute)})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            asked = request_fields(shareable)
            reason = explain(error, asked, self._owner, self._log)
            _LOG.warning("sqsgd: %s; more is in %s", reason, self._owner.get("state-dir"))
            return Shareable({REASON: reason})  # with a return code but OK, workflows stop the job or hide it

    def _answer(self, shareable: Shareable, fl_ctx: FLContext, compute: Compute) -> bytes:
        # The engine's function that sends federated events, which no filter of NVFlare sees; for the rest of
        # the job, since a trainer in another process may log metrics when its task is done.
        fl_ctx.get_engine().fire_and_forget_aux_request = lambda *_, **__: {}
        number = client_number(fl_ctx.get_identity_name())
        request = read_request(shareable, number)
        policy = Policy.of(self._owner, simulation=False)
        assert policy.state_dir is not None  # noqa: S101 - Policy requires it outside simulations
        self._log = private_log(policy.state_dir)
        _check_logs(fl_ctx)
        state = FolderState(policy.state_dir, policy)
        node = Node(policy=policy, state=state, client=number, log=self._log)
        return node.answer(request, partial(model_of, shareable), compute)


@contextlib.contextmanager
def _public_properties_kept(fl_ctx: FLContext) -> Iterator[None]:
    """NVFlare sends a context's public properties to the server: they, and sticky ones, stay as they are."""
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
    """Raise Refused if the site's logs, in which an executor may write about data, go to the server.

    A job's process may take a ``resources.json`` of the job. The client, which streams too, has the site's.
    """
    root = fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)  # none in simulations
    path = root and Workspace(root, fl_ctx.get_identity_name()).get_resources_file_path()
    setting: object = False
    if path:
        environment = os.environ.get(f"NVFLARE_{ALLOW_LOG_STREAMING_VAR}".upper())
        setting = json.loads(Path(path).read_text()).get(ALLOW_LOG_STREAMING_VAR, environment)
    if is_log_streaming_allowed(fl_ctx) or str(setting).lower() != "false":
        advice = 'set "allow_log_streaming": false in local/resources.json and restart the client'
        raise Refused(f"NVFlare may stream this site's logs to the server in the clear: {advice}")


def private_log(folder: Path) -> logging.Logger:
    """Return a logger that writes to ``log.txt`` in ``folder`` and nowhere else: NVFlare streams and shows
    its own.

    A failure is not reported either: tests/nvflare/test_client.py::test_nothing_reaches_other_handlers,
    ::test_no_failure_is_told.
    """
    log = logging.Logger("sqsgd", logging.INFO)  # not from getLogger: it has no parent
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "log.txt").touch(mode=0o600)
    file = _PrivateFile(folder / "log.txt", maxBytes=MAX_BYTES, backupCount=1, delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
    return log


@final
class _PrivateFile(RotatingFileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self.close()  # it is opened again for the next record

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Tell nobody."""


# ---------------------------------------------------------------- requests and models in Shareables


def client_number(name: str) -> int:
    """Return the number of a client in requests and reports: 64 bits of a digest of its name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_request(task_data: Shareable, request: Request) -> None:
    fields = request.to_fields()
    del fields["client"]
    task_data.set_header(REQUEST, fields)


def request_fields(task_data: Shareable) -> Mapping[str, object]:
    """Return the fields of a request as they arrived; none without a request."""
    fields = task_data.get_header(REQUEST)
    return fields if isinstance(fields, dict) else {}


def read_request(task_data: Shareable, client: int) -> Request:
    """Return the request of a task's data to this client. Raises MalformedRequest."""
    fields = request_fields(task_data)
    if not fields:
        raise NotAsked(f"the header {REQUEST!r} is missing: the server does not use SqsgdAggregator")
    if "client" in fields:
        raise MalformedRequest("the request names a client; one for all clients names none")
    return Request.from_fields({**fields, "client": str(client)})


def model_of(task_data: Shareable) -> Arrays:
    """Return the model that a task starts from. Raises MalformedRequest unless there is one."""
    try:
        return _arrays(task_data, DataKind.WEIGHTS)[1]
    except ValueError as error:
        raise MalformedRequest(str(error)) from None


def change_of(result: object, structure: Structure, weights: Vector) -> Vector:
    """Return the model before an executor's training minus the one after. Raises ValueError without one."""
    if not isinstance(result, Shareable) or result.get_return_code() != ReturnCode.OK:
        raise ValueError(f"the executor did not return a model but {type(result).__name__}")
    kind, arrays = _arrays(result, DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
    after = structure.flatten(arrays)
    return -after if kind == DataKind.WEIGHT_DIFF else weights - after


def _arrays(shareable: Shareable, *kinds: str) -> tuple[str, dict[str, Any]]:
    dxo = from_shareable(shareable)  # raises ValueError
    if dxo.data_kind not in kinds or not isinstance(dxo.data, dict) or not dxo.data:
        raise ValueError(f"a DXO of kind {dxo.data_kind!r}; it must be {' or '.join(kinds)}, and not empty")
    return dxo.data_kind, {name: np.asarray(value) for name, value in dxo.data.items()}
