"""The gate: nodes get through, and nothing of the Control API does, however it is written."""

import asyncio
import contextlib
import json
import ssl

import pytest

from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.gate import Gate, Refused, parse_head

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
        gate = Gate(server, upstream.sockets[0].getsockname()[:2], counts)
        port = _free()
        serving = asyncio.create_task(gate.serve("127.0.0.1", port))
        trust = ssl.create_default_context(cafile=str(server / "ca.pem"))
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
                break
            await asyncio.sleep(0.01)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        if counts is not None:
            while not counts.exists() or json.loads(counts.read_text())["passed"] < 1:
                await asyncio.sleep(0.05)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    return answer, seen


def _free():
    from sqsgd.deploy.live_state import free_port

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
    ],
)
def test_every_way_round_is_refused(head, status):
    with pytest.raises(Refused, match=status):
        parse_head(head)
