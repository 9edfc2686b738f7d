"""A worker: the service behind a socket, with bounded times and a log without addresses."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sqsgd.core import Aggregate
from sqsgd.core.random import secure_rng
from sqsgd.core.task import Task, Tasks
from sqsgd.federation.collect.rounds import confirm_clock, opened
from sqsgd.federation.collect.service import Service
from sqsgd.federation.collect.study import Study

_LOG = logging.getLogger("sqsgd.federation.collect")
_HEADER_BYTES, _IDLE_SECONDS, _CONNECTIONS = 16384, 15, 4000


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, with bounded headers; a body that the answer did not wait for is not read."""

    header_seconds = 10.0
    _received = _parsed = 0  # bytes since the last request, and those of this one's headers
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self._late is None:
            self._received = 0
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._late is not None and self._received > _HEADER_BYTES:
            self.send_400_response("The headers are too long.")
        elif self._late is None and self.cycle is not None and self.cycle.response_complete:
            self._wait_for_headers()  # empty lines between requests do not keep a connection open

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._parsed = 0
        self._wait_for_headers()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._bound_headers(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._bound_headers(len(name) + len(value) + 4)

    def _bound_headers(self, more: int) -> None:
        self._parsed += more
        if self._parsed > _HEADER_BYTES:
            raise ValueError("the headers are too long")  # the parser makes it a status of 400

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._received = 0
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def prepare(
    folder: Path,
    *,
    host: str,
    port: int,
    certificate: Path | None = None,
    key: Path | None = None,
    log_addresses: bool = False,
    clock_is_right: bool = False,
) -> tuple[uvicorn.Server, socket.socket, str]:
    """A server that is ready to run, its socket, and its address; whatever is wrong is found here."""
    if (certificate is None) != (key is None):
        raise ValueError("TLS needs both a certificate and its key")
    with opened(folder) as (study, database):
        if clock_is_right:
            confirm_clock(database)
    _warm_up(study)
    config = uvicorn.Config(
        Service(folder, study).app(),
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=log_addresses,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=30,
        limit_concurrency=_CONNECTIONS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    config.load()  # reads the certificate
    listener = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    scheme = "http" if certificate is None else "https"
    return uvicorn.Server(config), listener, f"{scheme}://{place}:{listener.getsockname()[1]}"


def serve(folder: Path, *, tell: Callable[[str], None], **options: Any) -> None:
    """Serve a study until SIGTERM or SIGINT; ``tell`` gets the address once it listens."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server, listener, address = prepare(folder, **options)
    if address.startswith("http:") and options["host"] not in ("127.0.0.1", "::1", "localhost"):
        _LOG.warning("without TLS everybody on the way sees the tickets: put a proxy with TLS in front")
    tell(address)
    server.run(sockets=[listener])


def _warm_up(study: Study) -> None:
    """Load the kernels and tables, so that the first device does not wait for them."""
    scheme, task = study.made_scheme, Task(round=0, client=0, seed=0, dim=study.dim, bound=study.bound)
    message = np.frombuffer(scheme.encode(np.zeros(study.dim, np.float32), task, secure_rng()), np.uint8)
    Aggregate(scheme).add_many(Tasks(task, [0]), message.reshape(1, -1))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket: the port is known, or found to be taken, before anything is served."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=kind, backlog=2048)
    except OSError as error:
        raise OSError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
