"""Which apps a node runs: those of its owner's list, from the owner's folder, and each of them private."""

import hashlib
import inspect
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")

from app_runs import PLAIN, GuardedNode, write_app
from federation import lines
from flwr.cli.build import build_fab_from_disk

from sqsgd.federation.flower import app_folder, guard

try:
    guard.check_version()
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of pathspec
NAMED = hashlib.sha256(b"another app").hexdigest()


@pytest.fixture
def node(monkeypatch, tmp_path):
    return GuardedNode(monkeypatch, tmp_path)


def evil(proof):
    """The text of an app that leaves a proof that it ran."""
    return f"{PLAIN}\nopen({str(proof)!r}, 'w').close()\n"


def test_the_installed_app_is_known_by_its_hash(node):
    node.list.write_text("# mine\n\ninstalled\n")
    sent = hashlib.sha256(build_fab_from_disk(app_folder())).hexdigest()
    assert guard.folder_of(sent) == app_folder()
    with pytest.raises(guard.AppRefused, match=NAMED):
        guard.folder_of(NAMED)


def test_an_app_that_is_not_listed_is_refused_and_noted(node, tmp_path):
    content = build_fab_from_disk(write_app(tmp_path / "plain", evil(tmp_path / "ran")))
    reply = node.run(content)
    assert hashlib.sha256(content).hexdigest() in reply.error.reason
    (line,) = lines(node.state / "refusals.jsonl")
    assert line["reason"] in reply.error.reason
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "flwr/apps").exists()  # nothing was unpacked


@pytest.mark.parametrize(
    "text", [None, "# none\n", "{good}\neverything\n", "{short} {app}\n", "{hash}\n", "{hash} {app}-gone\n"]
)
def test_without_a_valid_list_nothing_is_allowed(node, tmp_path, monkeypatch, text):
    app = write_app(tmp_path / "plain")
    named = guard.app_hash(app)
    node.list.unlink()
    if text is not None:
        values = {"good": f"{named} {app}", "hash": named, "short": named[:-1], "app": app}
        node.list.write_text(text.format(**values))
    with pytest.raises(guard.AppRefused):
        guard.folder_of(named)
    node.list.write_text(f"{named} {app}\n")
    assert guard.folder_of(named) == app
    monkeypatch.delenv(guard.LIST)
    with pytest.raises(guard.AppRefused):
        guard.folder_of(named)


def test_a_changed_folder_is_refused(node, tmp_path):
    content = node.allow(write_app(tmp_path / "plain"))
    (tmp_path / "plain/plain/client.py").write_text(evil(tmp_path / "ran"))
    assert "has changed since it was allowed" in node.run(content).error.reason
    assert not (tmp_path / "ran").exists()


def test_what_runs_is_the_owners_folder(node, tmp_path):
    """Neither what a server sends nor what lies in Flower's own folders is loaded."""
    content, proof = node.allow(write_app(tmp_path / "plain")), tmp_path / "ran"
    short = hashlib.sha256(content).hexdigest()[:8]
    write_app(tmp_path / f"flwr/apps/tester.plain.1.0.0.{short}", evil(proof))
    assert not node.run(content).has_error()
    for names in (("tester/plain", f"1.0.0.{short}/../tester.evil.1.0.0"), ("tester/evil", "1.0.0")):
        assert "attempting to load" in node.run(content, names=names).error.reason
    assert not proof.exists()


@pytest.mark.parametrize(
    "code", ["raise ValueError('patient 7')", "raise SystemExit('patient 7')", "import patient7"]
)
def test_why_an_app_cannot_be_loaded_stays_at_the_node(node, tmp_path, code):
    reply = node.run(node.allow(write_app(tmp_path / "plain", code)))
    assert "attempting to load" in reply.error.reason
    assert "patient" not in reply.error.reason


def test_flower_unpacks_and_loads_by_the_names_that_are_replaced():
    """The guard's way in: Flower looks its functions up in its module, in this order, and has no other."""
    import flwr.supernode.runtime.run_clientapp as runtime

    text = inspect.getsource(runtime.run_clientapp)
    steps = ("pull_task_input(", "install_from_fab(", "get_load_client_app_fn(", "load_client_app_fn(\n")
    places = [text.index(name) for name in steps]
    assert places == sorted(places)
    for elsewhere in ("zipfile", "extractall", "exec(", "import_module"):
        assert elsewhere not in inspect.getsource(runtime)


def test_a_node_refuses_every_other_kind_of_code():
    """All commands that Flower's SuperExec could start, but that for client apps."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    from sqsgd.federation.deploy.templates import REFUSED_COMMANDS

    assert {*REFUSED_COMMANDS, "flwr-clientapp"} == set(TASK_TYPE_TO_COMMAND.values())


@pytest.mark.parametrize(("version", "good"), [("1.40.9", False), ("1.41.0", True), ("1.43.0", False)])
def test_untested_versions_of_flower_run_nothing(monkeypatch, version, good):
    monkeypatch.setattr(guard.importlib.metadata, "version", lambda _: version)
    if good:
        guard.check_version()
    else:
        with pytest.raises(ValueError, match=r"pip install 'flwr\[simulation\]>=1\.41,<1\.43'"):
            guard.main()


@pytest.mark.parametrize(("end", "code"), [("raise OSError('impostor')", 1), ("sys.exit(7)", 7), ("pass", 1)])
def test_a_supernode_without_its_main_thread_exits(end, code):
    """Python alone would wait for the other thread for ever."""
    script = f"""
import sys, threading
from sqsgd.federation.flower import guard
def start():
    threading.Thread(target=threading.Event().wait).start()
    {end}
guard.run_supernode([], start)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert ("impostor" in done.stderr) == ("impostor" in end)
