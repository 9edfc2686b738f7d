"""The client's side: a filter of task data, in the site's ``privacy.json`` or in a job."""

from __future__ import annotations

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from sqsgd.nvflare.private_execution import PrivateExecution


class SqsgdFilter(Filter):
    """Makes every task of a job end in one private report, or in a refusal.

    NVFlare skips its result filters where an executor fails, and the server would learn that it did. So this
    is a filter of task *data*: before an executor is first called, it puts ``PrivateExecution`` in the place
    of the executor's ``execute``. Site filters come before those of a job: with one in ``privacy.json``, no
    job can do without it.

    The arguments are the owner's, as in a Flower node's configuration (docs/deploy.md): ``state_dir``,
    ``max_epsilon``, ``max_report_epsilon``, ``schemes``, ``require_ledger``, ``witness``, ``max_bytes``.

    Guarantees
    ----------
    * What leaves is one payload or one of a few fixed reasons, whatever the executor returns; no metrics, no
      number of steps: tests/nvflare/test_private_execution.py::test_nothing_else_leaves. Not covered: how
      long the executor ran, whether it stopped the job (``system_panic``), and what a job's code sends by
      itself.
    * The ledger is paid, on disk, before the executor is called:
      tests/nvflare/test_private_execution.py::test_paid_before_the_executor_runs,
      ::test_nothing_is_computed_on_a_spent_budget.
    * If the executor fails, the client still sends a paid report, of zero:
      tests/nvflare/test_private_execution.py::test_a_failing_executor_tells_nothing.
    * It covers every task of the job, whichever it is listed for:
      tests/nvflare/test_simulator.py::test_two_clients.
    * In the wrong place the filter blocks everything:
      tests/nvflare/test_client_filter.py::test_in_the_wrong_chain_it_blocks.
    """

    def __init__(
        self,
        state_dir: str,
        max_epsilon: float,
        max_report_epsilon: float | None = None,
        schemes: str | None = None,
        require_ledger: bool = False,
        witness: str | None = None,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__()
        # NVFlare writes a job's configuration from attributes that bear the arguments' names.
        self.state_dir, self.max_epsilon, self.max_report_epsilon = state_dir, max_epsilon, max_report_epsilon
        self.schemes, self.require_ledger, self.witness = schemes, require_ledger, witness
        self.max_bytes = max_bytes

    @property
    def owner(self) -> dict[str, object]:
        """The owner's configuration, as ``sqsgd.node.policy.Policy`` reads it; it checks the values."""
        keys = (
            "state_dir", "max_epsilon", "max_report_epsilon", "schemes", "require_ledger", "witness",
            "max_bytes",
        )  # fmt: skip
        values = {key.replace("_", "-"): getattr(self, key) for key in keys}
        return {key: value for key, value in values.items() if value is not None}

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
