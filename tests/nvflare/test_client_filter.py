"""Where the filter is put decides nothing: an executor is guarded, or it is not called."""

import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")
from flare import Trainer, context, task_data
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.signal import Signal

from sqsgd.node import reasons
from sqsgd.nvflare import SqsgdFilter, shareables
from sqsgd.nvflare.private_execution import PrivateExecution


def test_the_executor_is_guarded_once(tmp_path):
    trainer, data = Trainer(), task_data()
    owners, jobs = SqsgdFilter(str(tmp_path), 1e6), SqsgdFilter(str(tmp_path / "job"), 1e9)
    fl_ctx = context(trainer)
    assert owners.process(data, fl_ctx) is data  # a site's filters come first
    assert jobs.process(data, fl_ctx) is data
    reply = trainer.execute("train", data, fl_ctx, Signal())
    assert shareables.REPORT in reply
    assert trainer.calls == 1
    assert (tmp_path / "ledger").exists()
    assert not (tmp_path / "job").exists()


def test_an_event_is_enough(tmp_path):
    trainer = Trainer()
    guard = SqsgdFilter(str(tmp_path), 1e6, schemes="privunit-index")
    guard.handle_event(EventType.START_RUN, context(trainer))
    assert not isinstance(trainer.execute, PrivateExecution)
    guard.handle_event(EventType.BEFORE_TASK_EXECUTION, context(trainer))
    reply = trainer.execute("train", task_data(), context(trainer), Signal())
    assert reply[shareables.REASON] == reasons.NOT_ALLOWED


@pytest.mark.parametrize("where", [{"direction": FilterKey.OUT}, {"direction": None}, {"executor": None}])
def test_in_the_wrong_chain_it_blocks(tmp_path, where):
    fl_ctx = context(**{"executor": Trainer(), **where})
    with pytest.raises(RuntimeError, match="task_data_filters of a client"):
        SqsgdFilter(str(tmp_path), 1e6).process(task_data(), fl_ctx)


def test_the_owners_configuration_has_the_keys_of_a_node():
    made = SqsgdFilter("/state", 5.0, 1.0, "sqsgd", True, "/witness", 256)
    assert made.owner == {
        "state-dir": "/state",
        "max-epsilon": 5.0,
        "max-report-epsilon": 1.0,
        "schemes": "sqsgd",
        "require-ledger": True,
        "witness": "/witness",
        "max-bytes": 256,
    }
    assert set(SqsgdFilter("/state", 5.0).owner) == {"state-dir", "max-epsilon", "require-ledger"}
