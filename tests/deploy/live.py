"""A real federation for tests: what `sqsgd deploy` writes, run as honcho and systemd run it."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sqsgd.federation.deploy.federation import load_federation
from sqsgd.federation.deploy.folders import find_nginx

BIN = Path(sys.executable).parent


def environment(**more):
    """As after `. .venv/bin/activate`."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **more}


def sqsgd(*arguments, check=True):
    command = [BIN / "sqsgd", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def status(folder):
    return json.loads(sqsgd("deploy", "status", folder, "--json").stdout)


def wait_until(condition, seconds, what):
    """A deadline is for failure only: make it generous."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def metrics(folder, run="run-1"):
    path = Path(folder) / f"server/runs/{run}/metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def marked(mark):
    """Process numbers and command lines of everything with a mark in its environment."""
    found, wanted = {}, f"SQSGD_TEST={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Live:
    """A federation that is up: its server and nodes under honcho, and nginx, which a test may stop."""

    def __init__(self, folder, nodes):
        if find_nginx() is None:
            pytest.skip("nginx is not installed: apt-get install nginx-light")
        self.folder, self.mark, self.log = folder, secrets.token_hex(8), folder.parent / "live.log"
        honcho = [sys.executable, "-m", "honcho", "start"]
        self.honchos = [self._start([*honcho, "superlink", *(f"node-{index}" for index in range(nodes))])]
        self.start_nginx()
        wait_until(self._link_listens, 300, "the SuperLink listens")
        self.honchos.append(self._start([*honcho, "superexec"]))  # if it came first, it would wait long

    def _start(self, command):
        with self.log.open("a") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env=environment(SQSGD_TEST=self.mark), start_new_session=True,
            )  # fmt: skip

    def _link_listens(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", load_federation(self.folder).link_port)).close()
            return True

    def start_nginx(self):
        self.nginx = self._start([self.folder / "server/nginx.sh"])

    def stop_nginx(self):
        self.nginx.terminate()
        self.nginx.wait(100)

    def train(self, *options):
        """Start the server's own script; it ends with the training."""
        return self._start([self.folder / "server/train.sh", *map(str, options)])

    def trained(self, *options):
        """The exit code of a whole training, and what everything printed meanwhile."""
        before = len(self.log.read_text())
        return self.train(*options).wait(1800), self.log.read_text()[before:]

    def processes(self, words):
        return [pid for pid, command in marked(self.mark).items() if words in command]

    def of_node(self, name):
        """The processes of a node, but for the shell that restarts it."""
        home = f"FLWR_HOME={self.folder}/nodes/{name}/flwr".encode()
        found = self.processes(f"sqsgd.federation.deploy.node {self.folder}/nodes/{name} ")
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                if home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def _said(self, name):
        lines = [line for line in self.log.read_text().splitlines() if f" {name}.1 " in line]
        return "\n".join(lines).split("SuperNode ID: ")

    def starts(self, name):
        """How often a node has connected to the SuperLink."""
        return len(self._said(name)) - 1

    def number(self, name):
        """By which Flower calls a node."""
        return self._said(name)[-1].split()[0]

    def change(self, name, old, new):
        """Change the server's settings before the next training."""
        path = self.folder / "server" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def end(self):
        """Stop everything; what is left has ignored honcho, and is returned."""
        self.stop_nginx()
        for honcho in self.honchos:
            honcho.send_signal(signal.SIGINT)
        for honcho in self.honchos:
            honcho.wait(100)
        left = marked(self.mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        sys.stderr.write(self.log.read_text()[-6000:])
        return left
