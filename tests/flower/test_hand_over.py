"""A message is handed over, or the caller is told that nobody took it."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from sqsgd.flower.hand_over import TAKEN, YOURS, hand_over


@pytest.fixture(autouse=True)
def _back(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # which also restores the folder that was current


def answering(path, answer):
    """A socket that answers one message so; returns what arrives."""
    listener, arrived = socket.socket(socket.AF_UNIX), []
    listener.bind(path.name)
    listener.listen()

    def serve():
        with listener, listener.accept()[0] as connection:
            text, streams, _, _ = socket.recv_fds(connection, 1000, 2)
            arrived.extend([text, len(streams)])
            for stream in streams:
                os.close(stream)
            connection.sendall(answer)
            if answer == TAKEN:
                arrived.append(connection.recv(10))

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, arrived


@pytest.mark.parametrize(("answer", "taken"), [(TAKEN, True), (b"", False), (b"no", False)])
def test_what_is_taken(tmp_path, answer, taken):
    thread, arrived = answering(tmp_path / "socket", answer)
    assert hand_over(str(tmp_path / "socket"), ["--token", "a b"]) is taken
    thread.join()
    assert arrived == [b'["--token", "a b"]\n', 2, *([YOURS] if taken else [])]


def test_nobody_is_there(tmp_path):
    assert not hand_over(str(tmp_path / "socket"), [])
    assert not hand_over(str(tmp_path / "no folder/socket"), [])
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("socket")
    assert not hand_over(str(tmp_path / "socket"), [])


def test_it_needs_nothing_that_is_installed(tmp_path):
    """It is started for each message: by its path, without the site's packages."""
    import sqsgd.flower.hand_over as module

    command = [sys.executable, "-IS", "-X", "importtime", module.__file__, str(tmp_path / "socket"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    for heavy in ("numpy", "sqsgd", "pathlib", "flwr"):
        assert heavy not in done.stderr
