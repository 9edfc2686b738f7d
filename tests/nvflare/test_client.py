"""The client: what leaves, where the filter may stand, and the owner's log; with real ledgers on disk."""

import json
import logging
import re
from pathlib import Path

import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")
from asking import SCHEME, lines, target
from flare import Engine, Trainer, context, norm, task_data
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.dxo import DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, SystemConfigs
from nvflare.apis.signal import Signal
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.app_common.widgets.metric_relay import MetricRelay
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import Scope

from sqsgd.federation.node import policy
from sqsgd.federation.node.request import MalformedRequest
from sqsgd.federation.nvflare import SqsgdFilter, client
from sqsgd.federation.nvflare.client import PrivateExecution, private_log
from sqsgd.privacy.ledger import Ledger

PAGE = (Path(__file__).parents[2] / "docs/nvflare.md").read_text()
EPSILON = SCHEME["epsilon"]


def answer(folder, trainer, data=None, *, engine=None, name="site-1", site=None, **config):
    owner = {"state-dir": str(folder), "max-epsilon": 1e6}
    owner |= {key.replace("_", "-"): value for key, value in config.items()}
    execution = PrivateExecution(trainer.execute, owner)
    data = task_data() if data is None else data
    fl_ctx = context(trainer, engine=engine, name=name)
    fl_ctx.set_prop(FLContextKey.WORKSPACE_ROOT, site, private=True, sticky=False)
    return execution("train", data, fl_ctx, Signal())


def decoded(reply, name="site-1", **changes):
    asked = client.read_request(task_data(**changes), client.client_number(name))
    return asked.make_scheme().decode(reply[client.REPORT], asked.task)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_nothing_else_leaves(tmp_path, kind):
    reply = answer(tmp_path, Trainer(kind))
    assert set(reply) - {"__headers__"} == {client.REPORT}
    assert reply.get_header("__return_code__", "OK") == "OK"
    assert not reply.get_cookie_jar()
    pull = -target(5)  # the model before, zero, minus the model after
    estimate = decoded(reply)
    assert estimate @ pull > 0.1 * norm(estimate) * norm(pull)


@pytest.mark.parametrize("error", [None, ValueError("patient 7")])
@pytest.mark.parametrize("sticky", [False, True])
def test_no_public_property_leaves(tmp_path, sticky, error):
    """NVFlare sends them with every message of the context and, if they are sticky, of later ones."""

    class Telling(Trainer):
        def execute(self, task_name, shareable, fl_ctx, abort_signal):
            fl_ctx.set_prop("loss", 0.25, private=False, sticky=sticky)
            fl_ctx.set_prop("round", 7, private=False, sticky=True)  # the owner's, changed
            fl_ctx.set_prop("mine", 7, private=True, sticky=True)
            return super().execute(task_name, shareable, fl_ctx, abort_signal)

    trainer = Telling(error=error)
    fl_ctx = context(trainer)
    fl_ctx.set_prop("round", 1, private=False, sticky=True)
    before = fl_ctx.get_all_public_props()
    owner = {"state-dir": str(tmp_path), "max-epsilon": 1e6}
    reply = PrivateExecution(trainer.execute, owner)("train", task_data(), fl_ctx, Signal())
    assert client.REPORT in reply
    assert fl_ctx.get_all_public_props() == before
    later = fl_ctx.get_prop(ReservedKey.MANAGER).new_context()
    assert later.get_all_public_props() == before
    assert later.get_prop("mine") == 7


def test_paid_before_the_executor_runs(tmp_path):
    spent = []
    trainer = Trainer(before=lambda: spent.append(Ledger(tmp_path / "ledger").spent))
    answer(tmp_path, trainer)
    assert spent == [EPSILON]


def test_nothing_is_computed_on_a_spent_budget(tmp_path):
    trainer = Trainer()
    assert client.REPORT in answer(tmp_path, trainer, max_epsilon=1.5 * EPSILON)
    reply = answer(tmp_path, trainer, task_data(round=1), max_epsilon=1.5 * EPSILON)
    assert reply[client.REASON] == policy.SPENT
    assert trainer.calls == 1
    assert [entry["round"] for entry in lines(tmp_path / "refusals.jsonl")] == [1]


@pytest.mark.parametrize("error", [RuntimeError("the loss is 0.25"), SystemExit(3)])
def test_a_failing_executor_tells_nothing(tmp_path, error, caplog):
    caplog.set_level(logging.DEBUG)
    reply = answer(tmp_path, Trainer(error=error))
    good = answer(tmp_path / "other", Trainer())
    assert set(reply) == set(good)
    assert len(reply[client.REPORT]) == len(good[client.REPORT])
    assert Ledger(tmp_path / "ledger").spent == EPSILON
    written = [record for record in caplog.records if "config_service" not in record.pathname]
    assert not written  # in NVFlare's logs
    written = (tmp_path / "log.txt").read_text()
    assert "the app failed" in written
    assert repr(error).partition("(")[0] in written


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"max_bytes": SCHEME["bytes"] - 1}, policy.NOT_ALLOWED), ({"require_ledger": True}, policy.LEDGER)],
)
def test_what_the_owner_did_not_allow_is_refused(tmp_path, config, reason):
    trainer = Trainer()
    reply = answer(tmp_path, trainer, task_data(), **config)
    assert set(reply) - {"__headers__"} == {client.REASON}
    assert reply[client.REASON] == reason
    assert trainer.calls == 0


@pytest.mark.parametrize(
    ("resources", "found", "allowed"),  # the site's file, and the one that a job's process finds
    [
        (None, {}, True),
        ({}, {}, True),
        ({"allow_log_streaming": True}, {}, True),
        ({"allow_log_streaming": False}, {}, False),
        ({"allow_log_streaming": False}, {"allow_log_streaming": True}, True),
        ({"allow_log_streaming": True}, {"allow_log_streaming": False}, True),
        ({}, {"allow_log_streaming": False}, True),
    ],
)
def test_a_site_that_streams_its_logs_is_refused(tmp_path, monkeypatch, resources, found, allowed):
    monkeypatch.delenv("NVFLARE_ALLOW_LOG_STREAMING", raising=False)
    monkeypatch.setattr(ConfigService, "_sections", {SystemConfigs.RESOURCES_CONF: found})
    monkeypatch.setattr(ConfigService, "_var_values", {})
    for folder in ("local", "startup"):
        (tmp_path / "site" / folder).mkdir(parents=True)
    if resources is not None:
        (tmp_path / "site/local/resources.json").write_text(json.dumps(resources))
    trainer = Trainer()
    reply = answer(tmp_path / "state", trainer, site=str(tmp_path / "site"))
    assert trainer.calls == (not allowed)
    assert (tmp_path / "state/ledger").exists() == (not allowed)
    if allowed:
        assert reply[client.REASON] == policy.NOT_ALLOWED
        for name in ("refusals.jsonl", "log.txt"):
            assert "allow_log_streaming" in (tmp_path / "state" / name).read_text()


def converted(engine):
    """An event of the job, which a ConvertToFedEvent among the handlers takes."""
    send_analytic_dxo(Trainer(), LOSS, engine.new_context(), "analytix_log_stats")


def relayed(engine):
    relay = MetricRelay()
    relay._engine, relay._config = engine, {"client_fqcn": "trainer"}  # what START_RUN sets, with a cell
    relay._receive(Message({MessageHeaderKey.ORIGIN: "trainer"}, LOSS.to_dict()))


def logged(engine):
    executor = ClientAPIExecutor(execution_mode="in_process", task_script_path="trainer.py")
    executor.set_analytics_fire_fed_event(True)
    executor.fire_log_analytics(engine.new_context(), LOSS)


LOSS = create_analytic_dxo("loss", 0.25, AnalyticsDataType.SCALAR)


@pytest.mark.parametrize("send", [converted, relayed, logged])
def test_no_event_leaves(tmp_path, send):
    engine = Engine([ConvertToFedEvent(["analytix_log_stats"])] if send is converted else [])
    send(engine)
    before = len(engine.sent)
    assert before  # without a filter it is sent
    answer(tmp_path, Trainer(before=lambda: send(engine)), engine=engine)
    send(engine)  # a trainer in another process may still run
    assert len(engine.sent) == before


def test_a_request_that_names_a_client_or_is_missing_is_malformed():
    sent = task_data()
    client.request_fields(sent)["client"] = "5"
    with pytest.raises(MalformedRequest, match="names a client"):
        client.read_request(sent, 5)
    for header in (None, "text", {}):
        sent.set_header(client.REQUEST, header)
        with pytest.raises(MalformedRequest, match=r"header .* is missing"):
            client.read_request(sent, 5)


# ---------------------------------------------------------------- where the filter stands


def test_the_executor_is_guarded_once(tmp_path):
    trainer, data = Trainer(), task_data()
    owners, jobs = SqsgdFilter(str(tmp_path), 1e6), SqsgdFilter(str(tmp_path / "job"), 1e9)
    fl_ctx = context(trainer)
    assert owners.process(data, fl_ctx) is data  # a site's filters come first
    assert jobs.process(data, fl_ctx) is data
    reply = trainer.execute("train", data, fl_ctx, Signal())
    assert client.REPORT in reply
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
    assert reply[client.REASON] == policy.NOT_ALLOWED


@pytest.mark.parametrize("where", [{"direction": FilterKey.OUT}, {"direction": None}, {"executor": None}])
def test_in_the_wrong_chain_it_blocks(tmp_path, where):
    fl_ctx = context(**{"executor": Trainer(), **where})
    with pytest.raises(RuntimeError, match="task_data_filters of a client"):
        SqsgdFilter(str(tmp_path), 1e6).process(task_data(), fl_ctx)


def test_a_job_without_the_filter_is_guarded_by_the_site(tmp_path):
    (written,) = [text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "scopes" in text]
    written_policy = json.loads(written)
    written_policy["scopes"][0]["task_data_filters"][0]["args"]["state_dir"] = str(tmp_path / "state")
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    (tmp_path / "local/privacy.json").write_text(json.dumps(written_policy))
    scope = create_privacy_manager(Workspace(str(tmp_path)), names_only=False).get_scope(None)
    (guard,) = scope.task_data_filters[FilterKey.IN]
    assert isinstance(guard, SqsgdFilter)

    trainer = Trainer()
    fl_ctx = context(trainer)
    fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
    data = apply_filters(Scope.TASK_DATA_FILTERS_NAME, task_data(), fl_ctx, {}, "train", FilterKey.IN)
    assert client.REPORT in trainer.execute("train", data, fl_ctx, Signal())
    assert (tmp_path / "state/ledger").exists()


# ---------------------------------------------------------------- the owner's log


def failed(folder):
    try:
        raise ValueError("row 17")
    except ValueError:
        private_log(folder).exception("the app failed")


def test_nothing_reaches_other_handlers(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    failed(tmp_path / "state")
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    path = tmp_path / "state/log.txt"
    assert "the app failed" in path.read_text()
    assert "ValueError: row 17" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_no_failure_is_told(tmp_path, capfd):
    (tmp_path / "file").touch()
    failed(tmp_path / "file")  # not a folder
    assert capfd.readouterr() == ("", "")
