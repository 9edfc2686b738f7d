"""The quota of each node: who pays, how much, and what the operator sees."""

import asyncio
import base64
import contextlib
import json
import ssl
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqsgd.deploy.certificates import make_node_pair, pem_of_openssh
from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.gate import Gate
from sqsgd.deploy.gauges import _metrics
from sqsgd.deploy.live_state import free_port
from sqsgd.deploy.quotas import OTHERS, Bucket, Quotas, sender
from sqsgd.deploy.status import read_status
from sqsgd.files.prometheus_text import exposition


def signed(private, public, length, when=None):
    """The head of a request as a SuperNode signs it."""
    time = (when or datetime.now(UTC)).isoformat().encode()
    signature = load_ssh_private_key(private, None).sign(time, ec.ECDSA(hashes.SHA256()))
    lines = [
        b"POST /v1/fleet/push-object HTTP/1.1",
        b"Host: a",
        b"flwr-public-key: " + base64.b64encode(pem_of_openssh(public)),
        b"flwr-signature: " + base64.b64encode(signature),
        b"flwr-timestamp: " + time,
        b"Content-Length: %d" % length,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_federation(tmp_path_factory.mktemp("quotas") / "federation", Federation(nodes=2), 3)


def keys(folder, name):
    return (folder / f"nodes/{name}/key").read_bytes(), (folder / f"server/nodes/{name}.pub").read_bytes()


def test_a_node_is_known_by_its_signature(folder):
    names = {pem_of_openssh(keys(folder, name)[1]): name for name in ("node-0", "node-1")}
    assert [sender(signed(*keys(folder, name), 5), names) for name in names.values()] == ["node-0", "node-1"]
    stranger = make_node_pair("stranger")
    assert sender(signed(stranger.private, stranger.public, 5), names) == OTHERS


def test_nobody_else_spends_a_nodes_quota(folder):
    names = {pem_of_openssh(keys(folder, "node-0")[1]): "node-0"}
    (_, public), (private, _) = keys(folder, "node-0"), keys(folder, "node-1")
    assert sender(signed(private, public, 5), names) is None
    good = signed(*keys(folder, "node-0"), 5)
    assert sender(good, names) == "node-0"
    for broken in (
        good.replace(b"flwr-timestamp: 2", b"flwr-timestamp: 3"),
        good.replace(b"flwr-signature", b"flwr-signatur"),
        good.replace(b"flwr-public-key: ", b"flwr-public-key: !"),
        good.replace(b"\r\nHost: a", b"\r\nflwr-timestamp: a"),
    ):
        assert sender(broken, names) is None


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 150)), min_size=1, max_size=30),
    st.integers(0, 600),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_minute_holds_more_than_two_quotas(steps, start):
    now, taken = [0.0], []
    bucket = Bucket(100.0, 60.0, lambda: now[0])
    for wait, size in steps:
        now[0] += wait
        if bucket.take(size):
            taken.append((now[0], size))
    assert sum(size for time, size in taken if start <= time < start + 60) <= 200.001
    assert all(size <= 100 for _, size in taken)


def test_a_minute_and_a_day_have_their_quotas():
    now = [0.0]
    quotas = Quotas(256, lambda: now[0])
    reply = 2 * 256 + 16 * 1024
    assert (quotas.a_minute, quotas.a_day) == (64 * 1024 + 12 * reply, 4000 * reply)
    assert quotas.exceeded("a", quotas.a_minute) == ""
    assert quotas.exceeded("a", 1) == f"{quotas.a_minute} bytes a minute"
    assert quotas.exceeded("b", quotas.a_minute) == ""  # each has its own
    sent, now[0] = quotas.a_minute, 61.0
    while not (problem := quotas.exceeded("a", quotas.a_minute)):
        sent += quotas.a_minute
        now[0] += 61
    assert problem.endswith("a day")
    assert quotas.a_day - quotas.a_minute <= sent <= 2 * quotas.a_day
    now[0] += 86400
    assert quotas.exceeded("a", quotas.a_minute) == ""


def test_an_honest_day_fits():
    """A round every five seconds: three parts of a reply, and the requests around them, as measured."""
    now = [0.0]
    quotas = Quotas(256, lambda: now[0])
    for _ in range(17_280):
        for size in (900, 700, 500, 700, 200):
            assert quotas.exceeded("a", size) == ""
        now[0] += 5


async def answers(server, requests, counts):
    """What a gate with a SuperLink behind it responds to requests, one after the other."""
    behind = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    behind.load_cert_chain(server / "server.pem", server / "server.key")

    async def link(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    upstream, found = await asyncio.start_server(link, "127.0.0.1", 0, ssl=behind), []
    with contextlib.closing(upstream):
        port, door = free_port(), Gate(server, upstream.sockets[0].getsockname()[:2], counts)
        serving = asyncio.create_task(door.serve("127.0.0.1", port))
        trust = ssl.create_default_context(cafile=str(server / "ca.pem"))
        for head, body in requests:
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
                    break
                assert not serving.done()
                await asyncio.sleep(0.01)
            writer.write(head + body)
            found.append(await asyncio.wait_for(reader.read(), 120))
            writer.close()
        while not counts.exists() or json.loads(counts.read_text()) != vars(door.counts):
            await asyncio.sleep(0.05)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    return [answer.split(b"\r\n\r\n")[0] for answer in found]


def test_the_gate_refuses_counts_and_says_why(folder, capsys):
    server, size = folder / "server", 60_000
    flood, other = keys(folder, "node-0"), keys(folder, "node-1")
    most = Quotas(256).a_minute // size
    requests = [(signed(*flood, size), bytes(size)) for _ in range(most + 3)]
    requests += [(signed(*other, size), bytes(size)), (signed(*flood, size), b"")]
    requests += [(signed(*flood, 5).replace(b"Host: a", b"flwr-public-key: AAAA"), b"hello")]
    found = asyncio.run(answers(server, requests, server / "gate.json"))
    codes = [answer.split(b" ")[1] for answer in found]
    assert codes[:most] == [b"200"] * most
    assert codes[-3:] == [b"200", b"429", b"400"]  # the other node's, the flood's, and one with two keys
    refused = codes.count(b"429")
    assert refused >= 3
    assert b"Retry-After: 60" in found[-2]
    counts = json.loads((server / "gate.json").read_text())
    assert counts["over_quota"] == refused
    assert counts["nodes"]["node-0"] == {"bytes_up": size * codes[:-3].count(b"200"), "over_quota": refused}
    assert counts["nodes"]["node-1"] == {"bytes_up": size, "over_quota": 0}
    assert "429 Too Many Requests (node-0 has sent its" in capsys.readouterr().out
    status = read_status(server)
    text = exposition(_metrics(status))
    assert f'sqsgd_gate_over_quota_total{{node="node-0"}} {refused}\n' in text
    assert f'sqsgd_gate_node_bytes_total{{node="node-1"}} {size}\n' in text
    from sqsgd.cli._federation_view import show

    show(status)
    assert f"node-0 sent its quota of bytes: {refused} of its requests refused" in capsys.readouterr().out


def test_a_log_of_refusals_does_not_fill_the_disk(folder, capsys, monkeypatch):
    from sqsgd.deploy import gate

    monkeypatch.setattr(gate, "_MOST_LINES", 2)
    bad = b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    asyncio.run(answers(folder / "server", [(bad, b"")] * 6, folder / "counts.json"))
    assert json.loads((folder / "counts.json").read_text())["refused"] == 6
    assert 2 <= capsys.readouterr().out.count("refused POST") <= 5
