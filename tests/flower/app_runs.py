"""Apps as a SuperLink sends them, and a node that runs them by Flower's own code, without sockets."""

import hashlib
import sys
from types import SimpleNamespace

from federation import message, node_context, request
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run

from sqsgd.federation.flower import guard

SETTINGS = """\
[project]
name = "{name}"
version = "{version}"
description = ""
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "tester"

[tool.flwr.app.components]
serverapp = "{name}.server:app"
clientapp = "{name}.client:app"
"""
PLAIN = """\
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    moved = {key: array.numpy() + 1 for key, array in msg.content["arrays"].items()}
    sent = RecordDict({"arrays": ArrayRecord({key: Array(value) for key, value in moved.items()})})
    sent["metrics"] = MetricRecord({"num-examples": 7})
    return Message(sent, reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.5})}), reply_to=msg)
""".replace("import ArrayRecord", "import Array, ArrayRecord")
"""An app as Flower's quickstarts have it: nothing in it is private."""


def write_app(folder, client=PLAIN, name="plain", version="1.0.0"):
    """The folder of an app; the module of its client has this text."""
    (folder / name).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(SETTINGS.format(name=name, version=version))
    (folder / name / "__init__.py").write_text("")
    (folder / name / "client.py").write_text(client)
    (folder / name / "server.py").write_text("app = None\n")
    return folder


class GuardedNode:
    """Runs the guard as a node does, for one message at a time."""

    def __init__(self, monkeypatch, tmp_path):
        import flwr.supernode.runtime.run_clientapp as runtime

        self.runtime, self.patch, self.place = runtime, monkeypatch, tmp_path
        self.state, self.list = tmp_path / "state", tmp_path / "allowed-apps"
        self.state.mkdir()
        self.list.write_text("")
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
        monkeypatch.setenv(guard.LIST, str(self.list))
        monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")

    def allow(self, folder):
        """The bundle of an app, which the owner now allows."""
        content = build_fab_from_disk(folder)
        with self.list.open("a") as file:
            file.write(f"{hashlib.sha256(content).hexdigest()} {folder}\n")
        return content

    def run(
        self, content, *, names=("tester/plain", "1.0.0"), asked=None, kind="train", run_config=None, **config
    ):
        """The reply that would leave the node; ``names``: what the server calls the app."""
        run = Run.create_empty(1)
        run.fab_id, run.fab_version = names
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        msg, context = message(asked or request(), kind=kind), node_context(5, self.state, **config)
        context.run_config, replies = run_config or {}, []
        with self.patch.context() as patch:
            for name in ("install_from_fab", "get_load_client_app_fn"):
                patch.setattr(self.runtime, name, getattr(self.runtime, name))  # undone afterwards
            patch.setattr(self.runtime, "pull_task_input", lambda _: (msg, context, run, fab))
            patch.setattr(self.runtime, "push_message", lambda _, reply, __: replies.append(reply))
            client = SimpleNamespace(from_server_address=lambda **_: None)
            patch.setattr(self.runtime, "RuntimeHttpClient", client)
            for name in ("HeartbeatSender", "make_task_heartbeat_fn_http"):
                patch.setattr(self.runtime, name, lambda *_: SimpleNamespace(start=lambda: None))
            for name in ("register_signal_handlers", "flwr_exit", "event"):
                patch.setattr(self.runtime, name, lambda *_, **__: None)
            patch.setattr(sys, "argv", ["", "--token", "t", "--insecure"])
            patch.setattr(sys, "path", list(sys.path))
            before = set(sys.modules)
            try:
                guard.main()
            finally:
                for name in set(sys.modules) - before:
                    if name.partition(".")[0] in ("plain", "evil"):
                        del sys.modules[name]
        (reply,) = replies
        return reply
