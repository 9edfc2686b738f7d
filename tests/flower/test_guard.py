"""Which apps a node runs: those of its owner's list, as they were sent, and each of them private."""

import hashlib
import inspect
import tracemalloc

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
from sqsgd.flower.internals import OLDEST_DEPLOYED, untested

if untested(OLDEST_DEPLOYED):
    pytest.skip(f"sqsgd deploy is not for {untested(OLDEST_DEPLOYED)}", allow_module_level=True)

from app_runs import PLAIN, GuardedNode, archive, write_app
from federation import lines, request
from flwr.cli.build import build_fab_from_disk

from sqsgd.flower import app_folder, guard, wire

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of pathspec
APP = archive({"pyproject.toml": ""})
NAMED = hashlib.sha256(APP).hexdigest()


def test_what_the_list_names_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "allowed-apps").write_text(f"# mine\n\n{NAMED.upper()}  # by hand\n")
    monkeypatch.setenv(guard.LIST, str(tmp_path / "allowed-apps"))
    guard.check(APP)
    with pytest.raises(guard.AppRefused, match=hashlib.sha256(b"another").hexdigest()):
        guard.check(b"another")


def test_the_installed_app_is_known_by_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "allowed-apps").write_text("installed\n")
    monkeypatch.setenv(guard.LIST, str(tmp_path / "allowed-apps"))
    guard.check(build_fab_from_disk(app_folder()))
    with pytest.raises(guard.AppRefused):
        guard.check(APP)


@pytest.mark.parametrize("text", [None, "", "# none\n", f"{NAMED}\neverything\n", f"{NAMED[:-1]}\n", "*\n"])
def test_without_a_good_list_nothing_is_allowed(tmp_path, monkeypatch, text):
    path = tmp_path / "allowed-apps"
    monkeypatch.setenv(guard.LIST, str(path))
    if text is not None:
        path.write_text(text)
    with pytest.raises(guard.AppRefused):
        guard.check(APP)
    monkeypatch.delenv(guard.LIST)
    with pytest.raises(guard.AppRefused):
        guard.check(APP)


@pytest.fixture
def node(monkeypatch, tmp_path):
    return GuardedNode(monkeypatch, tmp_path)


def test_what_is_not_allowed_is_not_unpacked_and_is_written_down(node, monkeypatch, tmp_path):
    content = build_fab_from_disk(write_app(tmp_path / "plain"))
    monkeypatch.setattr(node.runtime, "install_from_fab", None)
    reply = node.run(content)
    assert hashlib.sha256(content).hexdigest() in reply.error.reason
    (line,) = lines(node.state / "refusals.jsonl")
    assert line["reason"] in reply.error.reason


def evil(proof):
    """The text of an app that leaves a proof that it ran."""
    return f"{PLAIN}\nopen({str(proof)!r}, 'w').close()\n"


@pytest.mark.parametrize(
    "names",
    [
        ("tester/plain", "1.0.0.{hash}/../tester.evil.1.0.0"),
        ("tester/plain", "1.0.0.{hash}/../../../elsewhere/evil"),
        ("tester/evil", "1.0.0"),
        ("tester/plain", "2.0.0"),
    ],
)
def test_no_other_folder_is_loaded(node, tmp_path, names):
    """An allowed bundle, under names that lead Flower to a folder of code that is not allowed."""
    content, proof = node.allow(write_app(tmp_path / "plain")), tmp_path / "ran"
    short = hashlib.sha256(content).hexdigest()[:8]
    for folder in ("flwr/apps/tester.evil.1.0.0", "flwr/apps/tester.plain.2.0.0", "elsewhere/evil"):
        write_app(tmp_path / f"{folder}.{short}", evil(proof), name="evil")
    (tmp_path / f"flwr/apps/tester.plain.1.0.0.{short}").mkdir()  # so that a path through it exists
    reply = node.run(content, names=tuple(name.format(hash=short) for name in names))
    assert "the server calls the app" in reply.error.reason
    assert not proof.exists()
    (line,) = lines(node.state / "refusals.jsonl")
    assert "and sent 'tester.plain.1.0.0" in line["reason"]


def test_what_was_left_in_an_apps_folder_is_not_loaded(node, tmp_path):
    """Flower unpacks once and then trusts what lies there."""
    content, proof = node.allow(write_app(tmp_path / "plain")), tmp_path / "ran"
    short = hashlib.sha256(content).hexdigest()[:8]
    write_app(tmp_path / f"flwr/apps/tester.plain.1.0.0.{short}", evil(proof))
    assert not node.run(content).has_error()
    assert not proof.exists()


def test_an_app_without_the_mod_sends_only_a_report(node, tmp_path):
    content = node.allow(write_app(tmp_path / "plain"))
    reply = node.run(content)
    assert list(reply.content) == [wire.REPORT]
    assert len(lines(node.state / "answers.jsonl")) == 1
    for kind in ("evaluate", "query", "train.other"):
        refused = node.run(content, kind=kind, asked=request(round=1))
        assert refused.has_error() or list(refused.content) == [wire.REPORT]
    in_clear = node.run(content, wrap_apps=False, asked=request(round=2))
    assert set(in_clear.content) == {"arrays", "metrics"}  # so that the test is seen to fail without it


@pytest.mark.parametrize("value", ["false", 0, 1.0])
def test_a_setting_that_is_neither_true_nor_false_is_refused(node, tmp_path, value):
    reply = node.run(node.allow(write_app(tmp_path / "plain")), wrap_apps=value)
    assert "must be true or false" in reply.error.reason


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize(
    "code", ["raise ValueError('patient 7')", "raise SystemExit('patient 7')", "import patient7"]
)
def test_why_an_app_cannot_be_loaded_stays_at_the_node(node, tmp_path, code, wrap):
    reply = node.run(node.allow(write_app(tmp_path / "plain", code)), wrap_apps=wrap)
    assert "attempting to load" in reply.error.reason
    assert "patient" not in reply.error.reason


def test_an_app_without_its_settings_does_not_run(node, tmp_path):
    """It was not allowed when its run began, so that nobody knows which batch the server asks for."""
    content = node.allow(write_app(tmp_path / "plain"))
    reply = node.run(content, run_config={guard.UNREAD: True})
    assert "not allowed when its run began" in reply.error.reason
    assert not (node.state / "answers.jsonl").exists()


def test_a_bomb_is_refused_even_if_it_is_listed(node):
    content = archive({"pyproject.toml": bytes(64 * 2**20)})
    node.list.write_text(hashlib.sha256(content).hexdigest())
    tracemalloc.start()
    try:
        reply = node.run(content)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    assert "does not unpack the app" in reply.error.reason
    assert len(lines(node.state / "refusals.jsonl")) == 1


def test_flower_unpacks_and_loads_by_the_names_that_are_replaced():
    """The guard's way in: Flower looks its functions up in its module, in this order."""
    import flwr.supernode.runtime.run_clientapp as runtime

    text = inspect.getsource(runtime.run_clientapp)
    steps = ("pull_task_input(", "install_from_fab(", "get_project_dir(", "get_load_client_app_fn(")
    places = [text.index(name) for name in (*steps, "load_client_app_fn(\n")]
    assert places == sorted(places)
    for name in steps[:3]:
        assert text.count(name) == 1
    for elsewhere in ("zipfile", "extractall", "exec("):
        assert elsewhere not in inspect.getsource(runtime)
