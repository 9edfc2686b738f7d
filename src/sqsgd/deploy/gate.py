"""The server's door for nodes: Flower serves three APIs on one port, and nodes need only one of them.

Whoever reaches the Control API can have code run on every node, and Flower asks nobody there who they are. So
the SuperLink listens on its own machine only, and this passes on requests to the Fleet API, which asks every
node for its key, and refuses the rest. One request a connection, of a stated length: there is no second
request that could hide behind the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from sqsgd.deploy.federation import NAME, load_federation
from sqsgd.files.durable import write_atomically

ALLOWED = "/v1/fleet/"
_MOST_HEAD = 32 * 1024
MOST_BODY = 64 * 1024
"""Bytes of a request's body beside twice the federation's report: what a node sends is a report."""
MOST_PASSED = 256
"""Requests that are passed on at the same time; others wait for their turn."""
_PATIENCE = 60.0
"""Seconds without a byte, either way, after which a connection is closed."""
_LONGEST = 900.0
"""Seconds that one request and its response may take in all, a whole model over a slow line included."""
_CHUNK = 1 << 16


class Refused(Exception):
    """A request that is not passed on, with the status to answer."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Counts:
    """What passed, for `sqsgd deploy status`: bytes of HTTP inside TLS, headers and all."""

    passed: int = 0
    refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    last_refused: str = ""
    changed: float = field(default_factory=time.monotonic)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {name: value for name, value in vars(self).items() if name != "changed"}


def parse_head(head: bytes, most_body: int = MOST_BODY) -> tuple[bytes, int]:
    r"""The head to pass on, and the length of the body; raises Refused.

    >>> parse_head(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
    (b'POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\n', 3)
    >>> parse_head(b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
    Traceback (most recent call last):
    sqsgd.deploy.gate.Refused: 403 Forbidden
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1":
        raise Refused("400 Bad Request")
    path = words[1].decode("latin-1")
    name = path.removeprefix(ALLOWED)
    # The exact shape of the Fleet API's addresses: nothing is left to be read in two ways.
    if words[0] != b"POST" or name == path or not name.replace("-", "").isalpha() or not name.isascii():
        raise Refused("403 Forbidden")
    kept, lengths = [lines[0]], []
    for line in lines[1:]:
        key, colon, value = line.partition(b":")
        if not colon or not key or key != key.strip() or b"\r" in line or b"\n" in line or b"\0" in line:
            raise Refused("400 Bad Request")
        lowered = key.lower()
        if lowered in (b"transfer-encoding", b"upgrade", b"expect"):
            raise Refused("400 Bad Request")
        if lowered == b"content-length":
            lengths.append(value.strip())
        if lowered not in (b"connection", b"keep-alive", b"proxy-connection"):
            kept.append(line)
    if len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > 12:
        raise Refused("411 Length Required")
    length = int(lengths[0])
    if length > most_body:
        raise Refused("413 Content Too Large")
    return b"\r\n".join([*kept, b"Connection: close", b"", b""]), length


class Gate:
    """The proxy: TLS in front with the server's certificate, TLS behind with the federation's authority."""

    def __init__(self, folder: Path, to: tuple[str, int], counts_file: Path | None = None) -> None:
        settings = folder / NAME
        report = load_federation(folder).bytes if settings.exists() else 0
        self._most_body, self._places = MOST_BODY + 2 * report, asyncio.Semaphore(MOST_PASSED)
        self._front = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._front.minimum_version = ssl.TLSVersion.TLSv1_2
        self._front.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._behind = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        self._to, self._counts_file = to, counts_file
        self.counts = Counts()

    async def serve(self, host: str, port: int) -> None:
        """Until cancelled."""
        server = await asyncio.start_server(
            self._answer, host, port, ssl=self._front, limit=_MOST_HEAD, ssl_handshake_timeout=_PATIENCE
        )
        async with server:
            if self._counts_file is None:
                await server.serve_forever()
            else:
                await asyncio.gather(server.serve_forever(), self._write_counts(self._counts_file))

    async def _write_counts(self, path: Path) -> None:
        written = 0.0
        while True:
            if self.counts.changed != written:
                written = self.counts.changed
                content = json.dumps(self.counts.to_dict()).encode()
                await asyncio.to_thread(write_atomically, path, content)  # a disk must not hold up requests
            await asyncio.sleep(1.0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            try:
                outgoing, length = parse_head(head, self._most_body)
            except Refused as refusal:
                self._note_refusal(head, refusal.status)
                answer = f"HTTP/1.1 {refusal.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                writer.write(answer.encode())
                await writer.drain()
                return
            async with asyncio.timeout(_LONGEST), self._places:
                await self._pass_on(outgoing, length, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the other side went away, or never said what it wanted
        finally:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _pass_on(
        self, head: bytes, length: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_link, to_link = await asyncio.open_connection(*self._to, ssl=self._behind)
        except OSError:
            answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            writer.write(answer)
            await writer.drain()
            return
        try:
            to_link.write(head)
            self._count(up=len(head))
            while length:
                async with asyncio.timeout(_PATIENCE):
                    part = await reader.read(min(_CHUNK, length))
                if not part:
                    return
                length -= len(part)
                self._count(up=len(part))
                to_link.write(part)
                async with asyncio.timeout(_PATIENCE):
                    await to_link.drain()
            while True:
                async with asyncio.timeout(_PATIENCE):
                    part = await from_link.read(_CHUNK)
                if not part:
                    break
                self._count(down=len(part))
                writer.write(part)
                async with asyncio.timeout(_PATIENCE):
                    await writer.drain()
            self.counts.passed += 1
        finally:
            to_link.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await to_link.wait_closed()

    def _count(self, *, up: int = 0, down: int = 0) -> None:
        self.counts.bytes_up += up
        self.counts.bytes_down += down
        self.counts.changed = time.monotonic()

    def _note_refusal(self, head: bytes, status: str) -> None:
        self.counts.refused += 1
        line = head.split(b"\r\n", 1)[0][:200].decode("latin-1")
        self.counts.last_refused = "".join(c for c in line if c.isprintable()) + f": {status}"
        self.counts.changed = time.monotonic()
        print(f"refused {self.counts.last_refused}", flush=True)  # noqa: T201 - its log
