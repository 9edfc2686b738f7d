"""The gate: nodes get through, and nothing of the Control API does, however it is written."""

import asyncio
import contextlib
import json
import ssl

import pytest

from sqsgd.deploy import gate
from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.gate import Gate, Rejected, parse_head

GOOD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return write_federation(tmp_path_factory.mktemp("gate") / "federation", Federation(nodes=1), 3) / "server"


async def conversation(server, sent, counts=None):
    """What a client of the gate gets back, and what a SuperLink behind it saw."""
    seen = []
    behind = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    behind.load_cert_chain(server / "server.pem", server / "server.key")

    async def link(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head + await reader.readexactly(5))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nback")
        await writer.drain()
        writer.close()

    upstream = await asyncio.start_server(link, "127.0.0.1", 0, ssl=behind)
    with contextlib.closing(upstream):
        door = Gate(server, upstream.sockets[0].getsockname()[:2], counts)
        port = _free()
        serving = asyncio.create_task(door.serve("127.0.0.1", port))
        answer = await asked(server, port, sent, serving)
        if counts is not None:
            while not counts.exists() or json.loads(counts.read_text())["passed"] < 1:
                await asyncio.sleep(0.05)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    return answer, seen


async def asked(server, port, sent, serving):
    """The answer of a gate that may still be starting."""
    trust = ssl.create_default_context(cafile=str(server / "ca.pem"))
    while not serving.done():
        with contextlib.suppress(ConnectionRefusedError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            break
        await asyncio.sleep(0.01)
    else:
        serving.result()  # such as a port that somebody else has taken
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    return answer


def _free():
    from sqsgd.deploy.node import free_port

    return free_port()


def test_nodes_get_through(server, tmp_path):
    answer, seen = asyncio.run(conversation(server, GOOD + b"\r\nhello", tmp_path / "counts"))
    assert answer.endswith(b"\r\n\r\nback")
    assert seen == [GOOD + b"Connection: close\r\n\r\nhello"]
    counts = json.loads((tmp_path / "counts").read_text())
    assert (counts["passed"], counts["refused"]) == (1, 0)
    assert (counts["bytes_up"], counts["bytes_down"]) == (len(seen[0]), len(answer))


@pytest.mark.parametrize(
    "second", [b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 0\r\n\r\n", GOOD + b"\r\nhello"]
)
def test_a_second_request_on_the_same_connection_goes_nowhere(server, second):
    answer, seen = asyncio.run(conversation(server, GOOD + b"\r\nhello" + second))
    assert answer.count(b"HTTP/1.1") == 1
    assert len(seen) == 1
    assert b"control" not in seen[0]


def test_the_control_api_is_closed(server):
    sent = b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
    answer, seen = asyncio.run(conversation(server, sent))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert seen == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST /v1/runtime/acquire-task HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST /v1/fleet/../control/start-run HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST /v1/fleet/%2e%2e/control/start-run HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST /v1/fleet//v1/control/start-run HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST /v1/fleet/x?/v1/control HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST /v1/fleet/ HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"POST https://a/v1/fleet/x HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "403"),
        (b"GET /v1/fleet/pull-messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "403"),
        (b"GET /docs HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "403"),
        (b"CONNECT /v1/fleet/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "403"),
        (b"POST /v1/fleet/x HTTP/1.0\r\nContent-Length: 5\r\n\r\n", "400"),
        (b"POST  /v1/fleet/x HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: 5\r\ntransfer-encoding: chunked\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: 5\r\nUpgrade: h2c\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length : 5\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\n Content-Length: 5\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nA: b\nContent-Length: 9\r\nContent-Length: 5\r\n\r\n", "400"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "411"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: +5\r\n\r\n", "411"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: -5\r\n\r\n", "411"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\n\r\n", "411"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "413"),
        (b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", "413"),
    ],
)
def test_every_way_round_is_refused(head, status):
    with pytest.raises(Rejected, match=status):
        parse_head(head)


def test_a_body_may_hold_the_federations_report(server, tmp_path):
    made = write_federation(tmp_path / "federation", Federation(nodes=1, bytes=3_000_000), 3)
    (made / "server/federation.toml").write_bytes((made / "federation.toml").read_bytes())
    for folder, most in ((server, 2**16 + 2 * 256), (made / "server", 2**16 + 6_000_000)):
        head = GOOD.replace(b"Content-Length: 5", b"Content-Length: %d" % (most + 1)) + b"\r\n"
        answers, _ = asyncio.run(several(folder, head, 1, answers_after=0.0))
        assert answers[0].startswith(b"HTTP/1.1 413 ")
        assert Gate(folder, ("127.0.0.1", 1))._max_body == most
    assert parse_head(head, most + 1)[1] == most + 1


async def several(server, sent, count, answers_after, together=1):
    """What so many clients at once get, and how many of them a SuperLink saw at the same time at most.

    It answers the first once ``together`` of them are there.
    """
    behind, now, most, there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), [0], [0], asyncio.Event()
    behind.load_cert_chain(server / "server.pem", server / "server.key")

    async def link(reader, writer):
        now[0] += 1
        most[0] = max(most[0], now[0])
        if now[0] >= together:
            there.set()
        await reader.readuntil(b"\r\n\r\n")
        await there.wait()
        await asyncio.sleep(answers_after)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nback")
        now[0] -= 1
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    upstream = await asyncio.start_server(link, "127.0.0.1", 0, ssl=behind)
    with contextlib.closing(upstream):
        door, port = Gate(server, upstream.sockets[0].getsockname()[:2]), _free()
        serving = asyncio.create_task(door.serve("127.0.0.1", port))
        try:
            answers = await asyncio.gather(*(asked(server, port, sent, serving) for _ in range(count)))
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
    return answers, most[0]


def test_a_superlink_that_never_answers_holds_no_connection(server, monkeypatch):
    monkeypatch.setattr(gate, "_PATIENCE", 4.0)  # which a handshake must not take
    answers, _ = asyncio.run(several(server, GOOD + b"\r\nhello", 2, answers_after=300.0))
    assert answers == [b"", b""]


def test_a_conversation_ends_however_slowly_it_goes(server, monkeypatch):
    monkeypatch.setattr(gate, "_LONGEST", 1.0)
    answers, _ = asyncio.run(several(server, GOOD + b"\r\nhello", 1, answers_after=300.0))
    assert answers == [b""]


def test_so_many_at_a_time_and_the_others_wait(server, monkeypatch):
    monkeypatch.setattr(gate, "MAX_CONCURRENT", 2)
    answers, most = asyncio.run(several(server, GOOD + b"\r\nhello", 6, answers_after=0.2, together=2))
    assert all(answer.endswith(b"back") for answer in answers)
    assert most == 2
