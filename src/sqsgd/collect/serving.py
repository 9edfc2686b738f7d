"""A worker: the service behind a socket, with bounded times and a log without addresses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sqsgd.collect.database import open_database
from sqsgd.collect.service import BODY_SECONDS, Service
from sqsgd.collect.stepping import check_study, confirm_clock
from sqsgd.collect.study import Study, load_study
from sqsgd.core import Aggregate
from sqsgd.randomness import secure_rng
from sqsgd.task import Task, Tasks

_LOG = logging.getLogger("sqsgd.collect")
HEADER_SECONDS, _IDLE_SECONDS, _CONNECTIONS = 10.0, 15, 4000


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which also drops connections whose headers are not complete in time."""

    header_seconds = HEADER_SECONDS
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_headers()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

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
    body_seconds: float = BODY_SECONDS,
) -> tuple[uvicorn.Server, socket.socket, str]:
    """A server that is ready to run, its socket, and its address; whatever is wrong is found here."""
    if (certificate is None) != (key is None):
        raise ValueError("TLS needs both a certificate and its key")
    study = load_study(folder)
    with contextlib.closing(open_database(folder)) as database:
        check_study(database, study)
        if clock_is_right:
            confirm_clock(database)
    _warm_up(study)
    config = uvicorn.Config(
        Service(folder, study, body_seconds=body_seconds).app(),
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
    listener = socket.socket(kind, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise OSError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
    return listener
