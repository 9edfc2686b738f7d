"""One task at a client: whatever its executor computes, what leaves is one private report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.fuel.utils import fobs

from sqsgd.checks import Vector
from sqsgd.node import reasons
from sqsgd.node.answer import Node
from sqsgd.node.node_state import FolderState
from sqsgd.node.policy import Policy, Refused
from sqsgd.node.structure import Structure
from sqsgd.nvflare import shareables

_LOG = logging.getLogger("sqsgd")
Execute = Callable[[str, Shareable, FLContext, Signal], Any]


@final
class PrivateExecution:
    """Takes the place of an executor's ``execute``: ``sqsgd.node.answer.Node`` decides when to call it.

    ``owner``: the owner's configuration, with the keys of a Flower node's.
    """

    def __init__(self, execute: Execute, owner: Mapping[str, object]) -> None:
        self._execute, self._owner = execute, owner

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
            return shareables.refusal(reasons.explain(error, asked, self._owner, _LOG))

    def _answer(
        self, shareable: Shareable, fl_ctx: FLContext, compute: Callable[[Structure, Vector], Vector]
    ) -> bytes:
        number = shareables.client_number(fl_ctx.get_identity_name())
        request = shareables.read_request(shareable, number)
        policy = Policy.of(self._owner, simulation=False)
        if policy.state_dir is None:  # Policy requires it outside simulations; the type does not say so
            raise Refused("state-dir is not set")
        _check_streams(fl_ctx)
        node = Node(
            policy=policy,
            state=FolderState(policy.state_dir, policy),
            client=number,
            log=_LOG,
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
        result = self._execute(task_name, task_data, fl_ctx, abort_signal)
        return shareables.change_of(result, structure, weights)


def _check_streams(fl_ctx: FLContext) -> None:
    """Raise Refused if the job streams events, such as metrics, which no filter of NVFlare sees."""
    components = fl_ctx.get_engine().get_all_components()
    streams = sorted(name for name, part in components.items() if isinstance(part, ConvertToFedEvent))
    if streams:
        raise Refused(
            f"the job's component {streams[0]!r} sends events to the server in the clear: remove it"
        )
