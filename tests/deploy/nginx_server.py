"""nginx with the configuration of a server's folder, for tests; skipped where nginx is not installed."""

import contextlib
import socket
import subprocess
import time
from pathlib import Path

import pytest

from sqsgd.federation.deploy.federation import load_federation
from sqsgd.federation.deploy.folders import find_nginx, reload_nginx


@contextlib.contextmanager
def running_nginx(server):
    """Its address, and a function that reloads it and returns when the old workers are gone."""
    if find_nginx() is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = load_federation(server).port
    child = subprocess.Popen([server / "nginx.sh"], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.1)

        def workers():
            tasks = f"/proc/{child.pid}/task/{child.pid}/children"
            with Path(tasks).open() as file:
                return set(file.read().split())

        def reload(begin=lambda: reload_nginx(server)):
            before = workers()
            assert begin()
            for _ in range(600):
                if not before & workers():
                    return
                time.sleep(0.1)
            raise AssertionError("the old workers still run")

        yield f"127.0.0.1:{port}", reload
    finally:
        child.terminate()
        child.communicate()
