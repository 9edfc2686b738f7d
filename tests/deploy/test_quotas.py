"""The quota of each node: who pays, how much, and what the operator sees."""

import asyncio
import base64
import contextlib
import json
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqsgd.deploy.node import free_port
from sqsgd.deploy.training import read_status

from sqsgd.deploy import quotas as quotas_module
from sqsgd.deploy.certificates import make_node_pair, pem_of_openssh
from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.gate import OTHERS, Gate
from sqsgd.deploy.gauges import _metrics
from sqsgd.deploy.quotas import Bucket, Quotas, sender
from sqsgd.files.prometheus_text import exposition


def signed(private, public, length, when=None):
    """The head of a request as a SuperNode signs it; ``when``: another time, or what stands for one."""
    time = when if isinstance(when, bytes) else (when or datetime.now(UTC)).isoformat().encode()
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
    for private, public in (keys(folder, "node-0"), keys(folder, "node-1")):
        assert sender(signed(private, public, 5)) == pem_of_openssh(public)


def test_nobody_else_spends_a_nodes_quota(folder):
    (own, public), (private, _) = keys(folder, "node-0"), keys(folder, "node-1")
    assert sender(signed(private, public, 5)) is None
    good = signed(own, public, 5)
    assert sender(good) == pem_of_openssh(public)
    for broken in (
        good.replace(b"flwr-timestamp: 2", b"flwr-timestamp: 3"),
        good.replace(b"flwr-signature", b"flwr-signatur"),
        good.replace(b"flwr-public-key: ", b"flwr-public-key: !"),
        good.replace(b"\r\nHost: a", b"\r\nflwr-timestamp: a"),
    ):
        assert sender(broken) is None


def test_what_was_signed_long_ago_is_not_counted(folder):
    """The SuperLink refuses it, too. What is ahead it may accept when it has read the body: it counts."""
    now, own = datetime.now(UTC), keys(folder, "node-0")
    for seconds, counted in ((300, True), (306, False), (-4, True), (-600, True)):
        found = sender(signed(*own, 5, now - timedelta(seconds=seconds)))
        assert (found == pem_of_openssh(own[1])) == counted
        assert (found is None) != counted
    for other in (b"whatever", now.replace(tzinfo=None).isoformat().encode(), "\u0661".encode()):
        assert sender(signed(*own, 5, other)) is None


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


def test_a_minute_has_its_quota():
    now = [0.0]
    quotas = Quotas(256, lambda: now[0])
    assert quotas.a_minute == 64 * 1024 + 20 * (2 * 256 + 16 * 1024)
    assert quotas.exceeded(b"a", quotas.a_minute) == ""
    assert quotas.exceeded(b"a", 1) == f"{quotas.a_minute} bytes a minute"
    assert quotas.exceeded(b"b", quotas.a_minute) == ""  # each has its own
    sent = quotas.a_minute
    while now[0] < 100 * 60:
        now[0] += 1
        sent += 5000 * (quotas.exceeded(b"a", 5000) == "") + 5000 * (quotas.exceeded(b"a", 5000) == "")
    assert 100 * quotas.a_minute - 5000 <= sent <= 101 * quotas.a_minute


@pytest.mark.parametrize("report", [256, 25_000, 200_000])
def test_an_honest_day_fits(report):
    """Nor do three: a round every two seconds, and an evaluation in each.

    Three parts of a reply, and the requests around them, as measured; and a third more of all.
    """
    now = [0.0]
    quotas = Quotas(report, lambda: now[0])
    training, evaluation = (900, 700, report + 500, 700, 200), (900, 700, 500, 700, 200)
    for _ in range(3 * 43_200):
        assert quotas.exceeded(b"a", (sum(training) + sum(evaluation)) * 4 // 3) == ""
        now[0] += 2


def test_the_longest_unused_key_is_forgotten(monkeypatch):
    monkeypatch.setattr(quotas_module, "MOST_KEYS", 3)
    quotas = Quotas(256, lambda: 0.0)
    for key in (b"a", b"b", b"c"):
        assert quotas.exceeded(key, quotas.a_minute) == ""
    assert quotas.exceeded(b"a", 1)  # and so b is the one that was not used for longest
    assert quotas.exceeded(b"d", 1) == ""
    assert len(quotas._buckets) == 3
    assert quotas.exceeded(b"a", 1)
    assert quotas.exceeded(b"b", 1) == ""


@contextlib.asynccontextmanager
async def gate_before_a_link(server, counts):
    """The port of a gate with a SuperLink behind it that accepts all; afterwards its counts are written."""
    behind = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    behind.load_cert_chain(server / "server.pem", server / "server.key")

    async def link(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    counts.unlink(missing_ok=True)
    upstream = await asyncio.start_server(link, "127.0.0.1", 0, ssl=behind)
    with contextlib.closing(upstream):
        port, door = free_port(), Gate(server, upstream.sockets[0].getsockname()[:2], counts)
        serving = asyncio.create_task(door.serve("127.0.0.1", port))
        while not counts.exists():  # written as soon as it listens
            assert not serving.done()
            await asyncio.sleep(0.01)
        yield port
        while json.loads(counts.read_text()) != vars(door.counts):
            await asyncio.sleep(0.05)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def answers(server, requests, counts):
    """What such a gate responds to requests, one after the other."""
    trust, found = ssl.create_default_context(cafile=str(server / "ca.pem")), []
    async with gate_before_a_link(server, counts) as port:
        for head, body in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(head + body)
            found.append(await asyncio.wait_for(reader.read(), 120))
            writer.close()
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
    assert codes[-3:] == [b"200", b"503", b"400"]  # the other node's, the flood's, and one with two keys
    refused = codes.count(b"503")
    assert refused >= 3
    assert b"Retry-After: 60" in found[-2]
    counts = json.loads((server / "gate.json").read_text())
    assert counts["over_quota"] == refused
    assert counts["nodes"]["node-0"] == {"bytes_up": size * codes[:-3].count(b"200"), "over_quota": refused}
    assert counts["nodes"]["node-1"] == {"bytes_up": size, "over_quota": 0}
    assert "503 Over Quota (node-0 has sent its" in capsys.readouterr().out
    status = read_status(server)
    text = exposition(_metrics(status))
    assert f'sqsgd_gate_over_quota_total{{node="node-0"}} {refused}\n' in text
    assert f'sqsgd_gate_node_bytes_total{{node="node-1"}} {size}\n' in text
    from sqsgd.cli._federation_view import show

    show(status)
    assert (
        f"node-0 sent its quota of bytes: {refused} of its requests refused for now"
        in capsys.readouterr().out
    )


def test_flower_repeats_what_exceeds_a_quota(folder, tmp_path):
    """So that a report is late, and not lost."""
    httpx = pytest.importorskip("httpx")
    retry = pytest.importorskip("flwr.supercore.retry", reason="needs pip install 'sqsgd[flower]'")
    server, own, size, codes = folder / "server", keys(folder, "node-0"), 60_000, []
    trust = ssl.create_default_context(cafile=str(server / "ca.pem"))
    invoker = retry.make_simple_http_retry_invoker()
    invoker.max_time = 120

    def push(port):
        lines = signed(*own, size).split(b"\r\n")[1:-2]
        headers = [tuple(line.split(b": ", 1)) for line in lines]
        url = f"https://127.0.0.1:{port}/v1/fleet/push-object"
        response = httpx.post(url, content=bytes(size), headers=headers, verify=trust, timeout=60)
        codes.append(response.status_code)
        response.raise_for_status()

    async def pushes():
        async with gate_before_a_link(server, tmp_path / "counts") as port:
            for _ in range(20):
                if 503 not in codes:
                    await asyncio.to_thread(invoker.invoke, push, port)

    asyncio.run(pushes())
    assert set(codes) == {200, 503}
    assert codes[-1] == 200
    assert json.loads((tmp_path / "counts").read_text())["over_quota"] == codes.count(503)


def test_strangers_do_not_spend_the_quotas_of_others(folder, tmp_path):
    """Nodes that were registered by hand are not in nodes/ either, and anybody can make a key."""
    stranger, by_hand, size = make_node_pair("stranger"), make_node_pair("by-hand"), 60_000
    requests = [(signed(stranger.private, stranger.public, size), bytes(size)) for _ in range(9)]
    requests += [(signed(by_hand.private, by_hand.public, size), bytes(size))]
    found = asyncio.run(answers(folder / "server", requests, tmp_path / "counts"))
    codes = [answer.split(b" ")[1] for answer in found]
    assert b"503" in codes
    assert codes[-1] == b"200"
    counts = json.loads((tmp_path / "counts").read_text())
    assert counts["nodes"] == {
        OTHERS: {"bytes_up": size * codes.count(b"200"), "over_quota": codes.count(b"503")}
    }


def test_a_log_of_refusals_does_not_fill_the_disk(folder, capsys, monkeypatch):
    from sqsgd.deploy import gate

    monkeypatch.setattr(gate, "_MOST_LINES", 2)
    bad = b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    asyncio.run(answers(folder / "server", [(bad, b"")] * 6, folder / "counts.json"))
    assert json.loads((folder / "counts.json").read_text())["refused"] == 6
    assert 2 <= capsys.readouterr().out.count("refused POST") <= 5
