"""A node that could not work says why before it starts."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from live import wait_until
from open_gate import ask, open_gate
from sqsgd.deploy.node import free_port

from sqsgd.deploy import certificates, preflight
from sqsgd.deploy.certificates import load_authority, renewed


def expire(federation, monkeypatch, *names):
    """Replace certificates by such as ended yesterday."""
    authority = load_authority(federation / "authority/ca.key", federation / "authority/ca.pem")
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_CLOCK_SKEW", timedelta(days=3))
        for name in names:
            (federation / name).write_bytes(renewed(authority, (federation / name).read_bytes(), -1))


def said(node, address):
    """What a node's owner reads, once the gate listens."""
    done = subprocess.run(
        [sys.executable, "-m", "sqsgd.deploy.preflight", node, address],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    return done.returncode, done.stderr


def test_an_expired_certificate_is_named_by_both_sides(federation, monkeypatch, capsys):
    expire(federation, monkeypatch, "server/server.pem")
    node = federation / "nodes/node-0"
    with open_gate(federation / "server") as address:
        found = lambda: (text := said(node, address)[1]) and "does not answer yet" not in text and text  # noqa: E731
        text = wait_until(found, 60, "the gate listens")
        assert f"the certificate of the server at {address} has expired" in text
        assert said(node, address)[0] == 1
    assert "server.pem expired on 20" in capsys.readouterr().out  # the gate's own log
    expire(federation, monkeypatch, "nodes/node-0/ca.pem")
    code, text = said(node, "127.0.0.1:1")
    assert code == 1
    assert "ca.pem expired on" in text


def test_a_clock_that_is_wrong_is_named(federation, monkeypatch):
    node = federation / "nodes/node-0"
    with open_gate(federation / "server") as address:

        def answered():
            try:
                return ask(address, node / "ca.pem")
            except ConnectionRefusedError:
                return None

        wait_until(answered, 60, "the gate listens")
        found = {}
        for ahead in (0, 100, -100, -1000):
            monkeypatch.setattr(
                preflight, "time", SimpleNamespace(time=lambda ahead=ahead: time.time() + ahead)
            )
            found[ahead] = list(preflight.problems(node, address))
    assert found[0] == found[-100] == []
    assert "s ahead of the server's; at most 5 s are allowed" in found[100][0]
    assert "s behind the server's; at most 305 s are allowed" in found[-1000][0]


def test_the_limits_are_flowers():
    constants = pytest.importorskip("flwr.common.constant", reason="needs pip install 'sqsgd[flower]'")
    assert constants.SYSTEM_TIME_TOLERANCE == preflight.AHEAD
    assert constants.TIMESTAMP_TOLERANCE + constants.SYSTEM_TIME_TOLERANCE == preflight.BEHIND


def test_a_server_that_is_away_is_waited_for(federation):
    code, text = said(federation / "nodes/node-0", f"127.0.0.1:{free_port()}")
    assert code == 0
    assert "does not answer yet" in text


def change(name, text):
    return lambda node: (node / name).write_text(text)


def settings(*lines):
    def add(node):
        with (node / "node.conf").open("a") as file:
            file.write("\n".join(lines))

    return add


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda node: (node / "node.conf").unlink(), "has no node.conf"),
        (settings("seed = 7"), "must be key=value, without spaces"),
        (settings("seed=seven"), "the value of seed, seven, must be a number"),
        (settings("evaluate-epsilon=-3"), "evaluate-epsilon = -3 must be"),
        (settings("min_batch=64"), "min_batch is unknown; did you mean min-batch?"),
        (settings('witness="tip"'), "witness = 'tip' must be an absolute path"),
        (lambda node: (node / "ca.pem").unlink(), "ca.pem is missing"),
        (lambda node: (node / "key").unlink(), "key is missing"),
        (lambda node: (node / "key.pub").unlink(), "key.pub is missing"),
        (change("ca.pem", "no certificate"), "ca.pem is damaged"),
        (change("key.pub", "no key"), "key.pub is damaged"),
    ],
)
def test_what_is_wrong_with_its_own_files_is_said_before_it_starts(federation, spoil, words):
    node = federation / "nodes/node-0"
    spoil(node)
    (found,) = preflight.problems(node, "127.0.0.1:1")
    assert words in found


@pytest.mark.parametrize("address", ["server.example.org", "127.0.0.1:abc", ":8000", "127.0.0.1:99999"])
def test_an_address_without_a_port_is_named(federation, address):
    code, text = said(federation / "nodes/node-0", address)
    assert (code, text.count("\n")) == (1, 1)
    assert f"the server's address, {address!r}, must look like server.example.org:8000" in text
