"""A reverse proxy in front of Flower's SuperLink that forwards only what nodes need.

Flower serves three APIs on one port. Anyone who reaches the Control API can run code on every node; Flower
does not authenticate its callers. So the SuperLink listens on its own machine only, and the gate forwards
requests to the Fleet API, which authenticates every node by its key, and rejects all others. Each connection
carries one request of a stated length, so no second request can hide behind the first. What a node may send
is limited (quotas.py).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import ssl
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm

from sqsgd.deploy.certificates import expiry, pem_of_openssh
from sqsgd.deploy.federation import NAME, load_federation
from sqsgd.deploy.quotas import KEY, Bucket, Quotas, sender, signed_headers
from sqsgd.files.durable import write_atomically

ALLOWED = "/v1/fleet/"
_MAX_HEAD = 32 * 1024
MAX_BODY = 64 * 1024
"""Bytes of a request's body, in addition to twice the size of a report."""
MAX_CONCURRENT = 256
"""Requests that are forwarded at the same time; others wait."""
_PATIENCE = 60.0
"""Seconds without a byte in either direction after which a connection is closed."""
_LONGEST = 900.0
"""Seconds for one request and its response, enough for a whole model over a slow line."""
_CHUNK = 1 << 16
OTHERS = "keys that are not in nodes/"
"""What nodes that were registered by hand, and strangers, are called together."""
OVER_QUOTA = "503 Over Quota"
"""Flower tries again after a 503, and loses a report that was paid for after a 429."""
_CHECK = b"GET / HTTP/1.1\r\n"
"""A node that compares clocks before it starts (preflight.py); answered here, and not forwarded."""
_MOST_LINES = 60
"""Refusals that are logged one by one in a minute; the others are counted."""
_WARN_BEFORE = timedelta(days=30)
_WARN_EVERY = timedelta(hours=12)


class Rejected(Exception):
    """A request that is not forwarded; the text is the HTTP status of the response.

    ``why`` is for the log.
    """

    def __init__(self, status: str, why: str = "") -> None:
        super().__init__(status)
        self.why = why


@dataclass
class Counts:
    """Traffic for `sqsgd deploy status`: bytes of HTTP inside TLS, headers included."""

    passed: int = 0
    refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    last_refused: str = ""
    over_quota: int = 0
    """Requests refused because of a node's quota; nodes repeat them."""
    nodes: dict[str, dict[str, int]] = field(default_factory=dict)
    """By a node's name: ``bytes_up``, of the bodies that were forwarded, and its share of ``over_quota``."""

    def of(self, node: str) -> dict[str, int]:
        """The counts of one node."""
        return self.nodes.setdefault(node, {"bytes_up": 0, "over_quota": 0})


def parse_head(head: bytes, max_body: int = MAX_BODY) -> tuple[bytes, int]:
    r"""The head to forward and the length of the body; raises Rejected.

    >>> parse_head(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
    (b'POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\n', 3)
    >>> parse_head(b"POST /v1/control/start-run HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
    Traceback (most recent call last):
    sqsgd.deploy.gate.Rejected: 403 Forbidden
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1":
        raise Rejected("400 Bad Request")
    path = words[1].decode("latin-1")
    name = path.removeprefix(ALLOWED)
    # Exactly the form of the Fleet API's paths, so that two parsers cannot read it differently.
    if words[0] != b"POST" or name == path or not name.replace("-", "").isalpha() or not name.isascii():
        raise Rejected("403 Forbidden")
    kept, lengths = [lines[0]], []
    for line in lines[1:]:
        key, colon, value = line.partition(b":")
        if not colon or not key or key != key.strip() or b"\r" in line or b"\n" in line or b"\0" in line:
            raise Rejected("400 Bad Request")
        lowered = key.lower()
        if lowered in (b"transfer-encoding", b"upgrade", b"expect"):
            raise Rejected("400 Bad Request")
        if lowered == b"content-length":
            lengths.append(value.strip())
        if lowered not in (b"connection", b"keep-alive", b"proxy-connection"):
            kept.append(line)
    if len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > 12:
        raise Rejected("411 Length Required")
    length = int(lengths[0])
    if length > max_body:
        raise Rejected("413 Content Too Large")
    return b"\r\n".join([*kept, b"Connection: close", b"", b""]), length


class Gate:
    """The proxy: TLS with the server's certificate in front, and to the SuperLink behind."""

    def __init__(self, folder: Path, to: tuple[str, int], counts_file: Path | None = None) -> None:
        settings = folder / NAME
        report = load_federation(folder).bytes if settings.exists() else 0
        self._max_body, self._slots = MAX_BODY + 2 * report, asyncio.Semaphore(MAX_CONCURRENT)
        self._quotas, self._log_lines, self._unlogged = Quotas(report), Bucket(_MOST_LINES, 60.0), 0
        self._folder, self._read, self._revoked = folder, list[int](), frozenset[bytes]()
        self._names: dict[bytes, str] = {}
        self._unread: set[Path] = set()
        self._warned = datetime.min.replace(tzinfo=UTC)
        self._front = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._front.minimum_version = ssl.TLSVersion.TLSv1_2
        self._read_folder()
        self._to, self._counts_file = to, counts_file
        self.counts = Counts()

    async def serve(self, host: str, port: int) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(
            self._answer, host, port, ssl=self._front, limit=_MAX_HEAD, ssl_handshake_timeout=_PATIENCE
        )
        async with server:
            await asyncio.gather(server.serve_forever(), self._keep_house(self._counts_file))

    def _read_folder(self) -> None:
        """Load what an operator may change while the gate runs: certificates, and the revoked keys."""
        paths = [self._folder / name for name in ("server.pem", "ca.pem", "revoked", "nodes")]
        changed = [path.stat().st_mtime_ns for path in paths if path.exists()]
        if changed != self._read:
            self._front.load_cert_chain(self._folder / "server.pem", self._folder / "server.key")
            self._behind = ssl.create_default_context(cafile=str(self._folder / "ca.pem"))
            unread = dict[Path, str]()
            self._revoked = frozenset(_keys(self._folder / "revoked", unread))
            self._names = _keys(self._folder / "nodes", unread)
            for path in unread.keys() - self._unread:
                _log(f"{path} is not a node's public key, and is left out: {unread[path]}")
            self._unread = set(unread)
            self._read = list[int]() if unread else changed  # what is being written is read again
        for name in ("server.pem", "ca.pem"):
            ends, now = expiry(self._folder / name), datetime.now(UTC)
            if (left := ends - now) < _WARN_BEFORE and now - self._warned > _WARN_EVERY:
                what = "expired" if left < timedelta(0) else "expires"
                _log(f"{name} {what} on {ends:%Y-%m-%d %H:%M} UTC: renew it with `sqsgd deploy renew`")
                self._warned = now

    async def _keep_house(self, path: Path | None) -> None:
        written = b""
        while True:
            try:
                self._read_folder()
            except (OSError, ValueError) as error:  # a file is being replaced, or is damaged
                _log(f"what changed in {self._folder} cannot be used: {error}")
            if path is not None and (content := json.dumps(vars(self.counts)).encode()) != written:
                # In a thread: a slow disk must not delay requests.
                await asyncio.to_thread(write_atomically, path, content)
                written = content
            await asyncio.sleep(1.0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            try:
                self._refuse_revoked(head)
                if head.startswith(_CHECK):
                    await _respond(writer, "200 OK")
                    return
                outgoing, length = parse_head(head, self._max_body)
                self._charge(head, length)
            except Rejected as rejection:
                self._note_rejection(head, rejection)
                await _respond(writer, str(rejection))
                return
            async with asyncio.timeout(_LONGEST), self._slots:
                await self._forward(outgoing, length, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the peer disconnected, or never sent a request
        finally:
            await _close(writer)

    def _refuse_revoked(self, head: bytes) -> None:
        """Raise Rejected unless the one key that the request names is not revoked.

        The SuperLink looks a node up by exactly these bytes, so any other form of a revoked key is unknown.
        """
        if not self._revoked:
            return
        keys = signed_headers(head)[KEY]
        try:
            named = {base64.b64decode(key, validate=True) for key in keys}
        except binascii.Error:
            raise Rejected("400 Bad Request") from None
        if len(keys) != 1 or named & self._revoked:
            raise Rejected("401 Revoked" if keys else "403 Forbidden")

    def _charge(self, head: bytes, length: int) -> None:
        """Raise Rejected if the node that signed the request has sent too much."""
        key = sender(head)
        if key is None:
            if any(len(values) > 1 for values in signed_headers(head).values()):  # two parsers, two senders
                raise Rejected("400 Bad Request")
            return  # the SuperLink refuses it, and stores nothing
        node = self._names.get(key, OTHERS)
        counts = self.counts.of(node)
        if exceeded := self._quotas.exceeded(key, length):
            counts["over_quota"] += 1
            self.counts.over_quota += 1
            raise Rejected(OVER_QUOTA, f"{node} has sent its {exceeded}")
        counts["bytes_up"] += length

    async def _forward(
        self, head: bytes, length: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_link, to_link = await asyncio.open_connection(*self._to, ssl=self._behind)
        except OSError:
            await _respond(writer, "503 Service Unavailable")
            return
        try:
            to_link.write(head)
            self.counts.bytes_up += len(head)
            if await self._copy(reader, to_link, "bytes_up", length) < length:
                return
            await self._copy(from_link, writer, "bytes_down")
            self.counts.passed += 1
        finally:
            await _close(to_link)

    async def _copy(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, name: str, most: int = sys.maxsize
    ) -> int:
        """Copy ``most`` bytes, or all up to the end; returns how many there were."""
        copied = 0
        while copied < most:
            async with asyncio.timeout(_PATIENCE):
                part = await source.read(min(_CHUNK, most - copied))
            if not part:
                break
            copied += len(part)
            setattr(self.counts, name, getattr(self.counts, name) + len(part))
            to.write(part)
            async with asyncio.timeout(_PATIENCE):
                await to.drain()
        return copied

    def _note_rejection(self, head: bytes, rejection: Rejected) -> None:
        self.counts.refused += 1
        line = head.split(b"\r\n", 1)[0][:200].decode("latin-1")
        why = f" ({rejection.why})" if rejection.why else ""
        self.counts.last_refused = "".join(c for c in line if c.isprintable()) + f": {rejection}{why}"
        if not self._log_lines.take(1):  # or a log of refusals would fill the disk
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more before it" if self._unlogged else ""
        self._unlogged = 0
        _log(f"refused {self.counts.last_refused}{more}")


def _keys(folder: Path, unread: dict[Path, str]) -> dict[bytes, str]:
    """The public keys in a folder, with their names; those that cannot be read are added to ``unread``."""
    found = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            found[pem_of_openssh(path.read_bytes())] = path.stem
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            unread[path] = str(error)
    return found


def _log(text: str) -> None:
    print(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}", flush=True)  # noqa: T201


async def _respond(writer: asyncio.StreamWriter, status: str) -> None:
    date = formatdate(usegmt=True)  # by which nodes check their clocks
    later = "Retry-After: 60\r\n" if status == OVER_QUOTA else ""
    writer.write(
        f"HTTP/1.1 {status}\r\nDate: {date}\r\n{later}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
