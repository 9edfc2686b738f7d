"""The service: requests of devices and its answers. Every worker runs one; none keeps anything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import math
import re
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from sqsgd.core import Aggregate
from sqsgd.core.random import secure_rng
from sqsgd.core.task import Task, Tasks
from sqsgd.federation.collect import intake
from sqsgd.federation.collect.database import Conflict, Database, DatabaseFailed, open_database
from sqsgd.federation.collect.intake import Accepted, Answer, Asked, Granted, Rejection
from sqsgd.federation.collect.rounds import model_path, opened, progress, read_state, tick, write_outcome
from sqsgd.federation.collect.study import INVITED, PAGE, RUN, Study, invitation_number

_LOG = logging.getLogger("sqsgd.federation.collect")
_MOST, _WAITING, _TRIES = 1000, 20000, 5
_Work = Callable[[Database, Sequence[Asked], Counter[str]], list[Answer]]
_Waiting = tuple[Asked, "asyncio.Future[Answer]"]


class GroupCommit:
    """One thread with one connection; requests that arrive during a transaction go into the next.

    Guarantees
    ----------
    * No answer is given before its transaction is on the disk; if that fails, the answer is no:
      tests/collect/test_service.py::test_nobody_is_told_yes_before_the_commit,
      ::test_a_failed_commit_is_a_no_to_all.
    """

    def __init__(self, open_database: Callable[[], Database], work: _Work) -> None:
        self._open, self._work = open_database, work
        self._waiting: deque[_Waiting] = deque()
        self.refused: Counter[str] = Counter()  # not stored yet
        self._wake, self._stopping = threading.Condition(), False
        self._loop = asyncio.get_running_loop()
        self._database: Database | None = None
        self.failure = ""  # why the last transaction failed; empty if it did not
        self._thread = threading.Thread(target=self._run, name="group commit", daemon=True)
        self._thread.start()

    async def submit(self, request: Asked) -> Granted | Accepted:
        """The answer to a request, after its transaction; raises a Rejection."""
        if len(self._waiting) >= _WAITING:
            raise Rejection("busy", "too many requests are waiting", 5.0)
        future: asyncio.Future[Answer] = self._loop.create_future()
        with self._wake:
            self._waiting.append((request, future))
            self._wake.notify()
        given = await future
        if isinstance(given, Rejection):
            raise given.with_traceback(None)  # many requests may share it
        return given

    def count(self, code: str) -> None:
        """Count a rejection; it is stored with the next transaction."""
        with self._wake:
            self.refused[code] += 1

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(60)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping and not self._waiting:
                    break
                taken = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
                refused, self.refused = self.refused, Counter()
            answers = self._transaction([request for request, _ in taken], refused)
            # Once for all of them: each call wakes the event loop.
            self._loop.call_soon_threadsafe(_resolve, taken, answers)
        if self._database is not None:
            self._database.close()

    def _transaction(self, requests: Sequence[Asked], refused: Counter[str]) -> list[Answer]:
        for _ in range(_TRIES):
            try:
                if self._database is None:
                    self._database = self._open()
                answers = self._work(self._database, requests, refused)
                if self.failure:
                    _LOG.warning("the database works again")
                self.failure = ""
                return answers
            except Exception as error:
                failure = str(error)
                if isinstance(error, Conflict):
                    continue
                if not isinstance(error, DatabaseFailed):
                    _LOG.exception("internal error: no request of this transaction was accepted")
                if self._database is not None:  # the next transaction opens another connection
                    with contextlib.suppress(Exception):
                        self._database.close()
                    self._database = None
                break
        if failure != self.failure:
            _LOG.error("no report is accepted until this is solved: %s", failure)
        self.failure = failure
        with self._wake:
            self.refused += refused
        time.sleep(0.2)  # a broken database is not asked all the time
        return [Rejection("storage", "the report cannot be stored now", 30.0)] * len(requests)


def _resolve(taken: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    for (_, future), given in zip(taken, answers, strict=True):
        if not future.done():  # the device may have gone
            future.set_result(given)


_JOIN_BYTES, _TICK_SECONDS, _CONNECTIONS = 1024, 0.1, 4000
_TICKET, _ROUND = re.compile(r"[0-9a-f]{64}"), re.compile(r"0|[1-9][0-9]{0,6}")
_Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """One worker of a study."""

    body_seconds = 10.0
    commit: GroupCommit

    def __init__(self, folder: Path, study: Study) -> None:
        self._folder, self._study = folder, study
        self._model = (-1, b"")  # the round that was asked for last, and its weights
        self._known: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._reading = asyncio.Lock()
        self._database: Database | None = None
        self._ended = False

    def app(self) -> ASGIApp:
        """The application; a folder ``page`` of the study is served as its web page."""
        handlers: dict[str, tuple[str, _Handler]] = {
            "/study": ("GET", self.study),
            "/join": ("POST", self.join),
            "/report": ("POST", self.report),
            "/model/{study}/{round}": ("GET", self.model),
            "/health": ("GET", self.health),
        }
        routes: list[BaseRoute] = [
            Route(path, _Endpoint(self, handler, method)) for path, (method, handler) in handlers.items()
        ]
        if (page := self._folder / PAGE).is_dir():
            routes.append(Mount("/", Starlette(routes=[Mount("/", StaticFiles(directory=page, html=True))])))
        # A router and no more: the layers around it would take as long as a report.
        missing = _Endpoint(self, self._missing)
        return Router(routes, redirect_slashes=False, default=missing, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        opened = functools.partial(open_database, self._folder)
        self.commit = GroupCommit(opened, lambda database, *more: intake.answer(database, self._study, *more))
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        await asyncio.to_thread(self.commit.stop)
        if self._database is not None:
            self._database.close()

    async def study(self, _request: Request) -> Response:
        return JSONResponse({**self._study.public(), **await self._progress()})

    async def join(self, request: Request) -> Response:
        study, asked = self._study, None
        with contextlib.suppress(ValueError, RecursionError):
            asked = json.loads(await self._body(request, _JOIN_BYTES))
        if not isinstance(asked, dict):
            raise Rejection("bad-request", "the body is not a JSON object")
        self._check_study(asked.get("study"))
        ticket, number = _digest(asked.get("ticket")), ""
        if study.admission == INVITED:
            try:
                number = invitation_number(asked.get("invitation"), study.id, study.key)
            except ValueError as error:
                raise Rejection("invitation-invalid", str(error)) from None
        given = await self.commit.submit(intake.Join(ticket, number))
        if not isinstance(given, Granted):
            raise TypeError(given)
        task = {
            "round": given.round, "client": given.slot, "seed": study.seed, "dim": study.dim,
            "bound": given.bound, "clip": None,
        }  # fmt: skip
        model, seconds = model_path(study, given.round), round(given.seconds, 1)
        return JSONResponse({"study": study.id, "task": task, "model": model, "seconds": seconds})

    async def report(self, request: Request) -> Response:
        """Take a report; it is on the disk before the device has the answer."""
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise Rejection("bad-request", "the header Authorization must be: Bearer TICKET")
        message = await self._body(request, self._study.made_scheme.bits // 8)
        given = await self.commit.submit(intake.Report(_digest(secret), message))
        if not isinstance(given, Accepted):
            raise TypeError(given)
        return JSONResponse({"accepted": True, "round": given.round, "again": given.again})

    async def model(self, request: Request) -> Response:
        self._check_study(request.path_params["study"])
        if not _ROUND.fullmatch(request.path_params["round"]):
            raise Rejection("not-found", f"there are {self._study.rounds} rounds")
        number, (known, weights) = int(request.path_params["round"]), self._model
        if number != known:
            try:
                state = await self._read(lambda database: read_state(database, number))
            except ValueError as error:
                raise Rejection("not-found", str(error)) from None
            weights = state.weights.astype("<f4").tobytes()
            self._model = number, weights
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(weights, media_type="application/octet-stream", headers=headers)

    async def health(self, _request: Request) -> Response:
        try:
            async with asyncio.timeout(5):
                await self.commit.submit(intake.Probe())
        except TimeoutError:
            raise Rejection("busy", "no transaction in five seconds", 5.0) from None
        return JSONResponse({"healthy": True})

    async def _missing(self, _request: Request) -> Response:
        raise Rejection("not-found", "this service does not have that")

    def _check_study(self, named: object) -> None:
        if named != self._study.id:
            raise Rejection("wrong-study", f"this is study {self._study.id}")

    async def _body(self, request: Request, most: int) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(self.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise Rejection("too-long", f"the body has more than {most} bytes")
        except TimeoutError:
            raise Rejection("too-slow", f"the body took more than {self.body_seconds:g} s") from None
        return body

    async def _read(self, query: Callable[[Database], Any]) -> Any:
        """A query in a thread, with a connection for queries; a Rejection if the database is gone."""
        async with self._reading:
            try:
                if self._database is None:
                    self._database = await asyncio.to_thread(open_database, self._folder)
                return await asyncio.to_thread(query, self._database)
            except OSError as error:
                if self._database is not None:
                    self._database.close()
                self._database = None
                _LOG.error("the database cannot be read: %s", error)
                raise Rejection("storage", "the database cannot be read now", 30.0) from None

    async def _progress(self) -> dict[str, Any]:
        """How far the study is, at most a second old, however many ask."""
        now = time.monotonic()
        if now > self._known[0] + 1:
            self._known = now, await self._read(lambda database: progress(database, self._study))
        return self._known[1]

    def _write_run(self, database: Database) -> None:
        write_outcome(self._folder / RUN, database, self._study)

    async def _tick(self) -> None:
        """End rounds, take steps, count refusals, and write the run when the study has ended."""
        pause = _TICK_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                stepped = await self._read(lambda database: tick(database, self._study))
                known = await self._progress()
                if self.commit.refused:
                    await self.commit.submit(intake.Probe())
                if known["state"] == intake.ENDED and not self._ended:
                    await self._read(self._write_run)
                    self._ended = True
                pause = 0.0 if stepped else 1.0 if self._ended else _TICK_SECONDS
            except Rejection:
                pause = 2.0
            except Exception:
                _LOG.exception("internal error in the end of a round; it is tried again")
                pause = 5.0


class _Endpoint:
    """A handler as an application: what it refuses is answered and counted."""

    def __init__(self, service: Service, handler: _Handler, method: str = "") -> None:
        self._service, self._handler, self.method = service, handler, method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            if self.method and asked != self.method:
                raise Rejection("wrong-method", f"this takes {self.method}, not {scope['method']}")
            response = await self._handler(Request(scope, receive))
        except Rejection as error:
            response = self._refuse(error)
        except ClientDisconnect:
            self._service.commit.count("too-slow")
            return
        except Exception:
            _LOG.exception("internal error in %s", scope["path"])
            response = self._refuse(Rejection("internal", "internal error"))
        await response(scope, receive, send)

    def _refuse(self, given: Rejection) -> Response:
        self._service.commit.count(given.code)
        headers = {"allow": self.method} if given.code == "wrong-method" else {}
        if given.status in (429, 503):
            headers["retry-after"] = str(max(1, round(given.seconds)))
        body = {"error": given.code, "reason": given.reason, "what_to_do": given.what_to_do}
        return JSONResponse(body, given.status, headers)


def _digest(ticket: object) -> str:
    """What the service stores of a ticket: a reader of the database cannot use it."""
    if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
        raise Rejection("bad-request", "a ticket is 64 hexadecimal digits, drawn by the device")
    return hashlib.blake2b(bytes.fromhex(ticket), digest_size=16, person=b"sqsgd ticket").hexdigest()


def prepare(folder: Path, host: str, port: int) -> tuple[uvicorn.Server, socket.socket, str]:
    """A server that is ready to run, its socket, and its address; anything wrong is found here."""
    with opened(folder) as (study, _):
        pass
    # The kernels and tables are loaded now, so that the first device does not wait for them.
    scheme, task = study.made_scheme, Task(round=0, client=0, seed=0, dim=study.dim, bound=study.bound)
    message = np.frombuffer(scheme.encode(np.zeros(study.dim, np.float32), task, secure_rng()), np.uint8)
    Aggregate(scheme).add_many(Tasks(task, [0]), message.reshape(1, -1))
    config = uvicorn.Config(
        Service(folder, study).app(), ws="none", lifespan="on", log_config=None,
        access_log=False,  # addresses and times would tell the order of reports
        proxy_headers=False, server_header=False, timeout_keep_alive=15, timeout_graceful_shutdown=30,
        limit_concurrency=_CONNECTIONS,
    )  # fmt: skip
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=kind, backlog=2048)
    except OSError as error:
        raise OSError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
    place = f"[{host}]" if ":" in host else host
    return uvicorn.Server(config), listener, f"http://{place}:{listener.getsockname()[1]}"


def serve(folder: Path, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve a study until SIGTERM or SIGINT; ``tell`` gets the address once it listens."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server, listener, address = prepare(folder, host, port)
    if host not in ("127.0.0.1", "::1", "localhost"):
        _LOG.warning("without TLS everybody on the way sees the tickets: put a proxy with TLS in front")
    tell(address)
    server.run(sockets=[listener])
