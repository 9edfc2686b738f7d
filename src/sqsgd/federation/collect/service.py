"""The service: what devices ask, and what they are told. Every worker runs one; none keeps anything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from sqsgd import __version__
from sqsgd.federation.collect.database import Conflict, Database, DatabaseFailed, open_database
from sqsgd.federation.collect.intake import (
    ENDED,
    Accepted,
    Answer,
    Asked,
    Granted,
    Join,
    Probe,
    Rejection,
    Report,
    answer,
)
from sqsgd.federation.collect.openapi import description
from sqsgd.federation.collect.rounds import (
    model_path,
    progress,
    prometheus,
    read_state,
    refusals,
    tick,
    write_outcome,
)
from sqsgd.federation.collect.study import INVITED, PAGE, RUN, Inspector, InvalidInvitation, Study

_LOG = logging.getLogger("sqsgd.federation.collect")
_MOST, _WAITING, _TRIES = 1000, 20000, 5
_Work = Callable[[Database, Sequence[Asked], Counter[str]], list[Answer]]
_Waiting = tuple[Asked, "asyncio.Future[Answer]"]


class GroupCommit:
    """One thread with one connection; whatever arrives during a transaction goes into the next.

    Guarantees
    ----------
    * No answer is given before its transaction is on the disk; if that fails, the answer says so:
      tests/collect/test_group_commit.py::test_nobody_is_told_yes_before_the_commit,
      ::test_a_failed_commit_is_a_no_to_all.
    """

    def __init__(self, open_database: Callable[[], Database], work: _Work) -> None:
        self._open, self._work = open_database, work
        self._waiting: deque[_Waiting] = deque()
        self._refused: Counter[str] = Counter()
        self._wake, self._stopping = threading.Condition(), False
        self._loop = asyncio.get_running_loop()
        self._database: Database | None = None
        self.commits = self.requests = 0
        self.seconds = 0.0
        self.failure = ""
        """Why the last transaction failed; empty if it did not."""
        self._thread = threading.Thread(target=self._run, name="group commit", daemon=True)
        self._thread.start()

    async def submit(self, request: Asked) -> Answer:
        """The answer to a request, after its transaction."""
        if len(self._waiting) >= _WAITING:
            return Rejection(code="busy", reason="too many requests are waiting", seconds=5.0)
        future: asyncio.Future[Answer] = self._loop.create_future()
        with self._wake:
            self._waiting.append((request, future))
            self._wake.notify()
        return await future

    def count(self, code: str) -> None:
        """Count a request that was rejected without a transaction; it is stored with the next one."""
        with self._wake:
            self._refused[code] += 1

    @property
    def uncounted(self) -> bool:
        """Whether rejections wait to be stored."""
        return bool(self._refused)

    def stop(self) -> None:
        """Answer what is waiting, then end."""
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
                refused, self._refused = self._refused, Counter()
            answers = self._transaction([request for request, _ in taken], refused)
            # Once for all of them: each call wakes the event loop.
            self._loop.call_soon_threadsafe(_resolve, taken, answers)
        if self._database is not None:
            self._database.close()

    def _transaction(self, requests: Sequence[Asked], refused: Counter[str]) -> list[Answer]:
        started = time.perf_counter()
        for _ in range(_TRIES):
            try:
                if self._database is None:
                    self._database = self._open()
                answers = self._work(self._database, requests, refused)
                if self.failure:
                    _LOG.warning("the database works again")
                self.failure = ""
                self.commits, self.requests = self.commits + 1, self.requests + len(requests)
                self.seconds += time.perf_counter() - started
                return answers
            except Conflict as error:
                failure = str(error)
            except Exception as error:
                failure = str(error)
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
            self._refused += refused
        time.sleep(0.2)  # a broken database is not asked all the time
        no = Rejection(code="storage", reason="the report cannot be stored now", seconds=30.0)
        return [no] * len(requests)


def _resolve(taken: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    for (_, future), given in zip(taken, answers, strict=True):
        if not future.done():  # the device may have gone
            future.set_result(given)


_JOIN_BYTES, _TICK_SECONDS = 1024, 0.1
_TICKET, _ROUND = re.compile(r"[0-9a-f]{64}"), re.compile(r"0|[1-9][0-9]{0,6}")
_Handler = Callable[[Request], Awaitable[Response]]


class Refused(Exception):
    """A request that is answered with a rejection."""

    def __init__(self, code: str, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.rejection = Rejection(code=code, reason=reason, seconds=seconds)


class Service:
    """One worker of a study."""

    body_seconds = 10.0
    commit: GroupCommit

    def __init__(self, folder: Path, study: Study) -> None:
        self._folder, self._study = folder, study
        self._inspector = Inspector(study.id, study.key) if study.admission == INVITED else None
        self._model = (-1, b"")  # the round that was asked for last, and its weights
        self._known: tuple[float, dict[str, Any], dict[str, int]] = (-math.inf, {}, {})
        self._reading = asyncio.Lock()
        self._database: Database | None = None
        self._ended = False
        self._accepted = 0

    def app(self) -> ASGIApp:
        """The application; a folder ``page`` of the study is served as its web page."""
        handlers: dict[str, tuple[str, _Handler]] = {
            "/study": ("GET", self.study),
            "/join": ("POST", self.join),
            "/report": ("POST", self.report),
            "/model/{study}/{round}": ("GET", self.model),
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.metrics),
            "/openapi.json": ("GET", self.openapi),
        }
        routes: list[BaseRoute] = [
            Route(path, _Endpoint(self, handler, method)) for path, (method, handler) in handlers.items()
        ]
        if (page := self._folder / PAGE).is_dir():
            routes.append(Mount("/", Starlette(routes=[Mount("/", StaticFiles(directory=page, html=True))])))
        # A router and no more: the layers around it would take as long as a report.
        missing = _Endpoint(self, self.missing)
        return Router(routes, redirect_slashes=False, default=missing, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        opened = functools.partial(open_database, self._folder)
        self.commit = GroupCommit(opened, lambda database, *more: answer(database, self._study, *more))
        ticking = asyncio.create_task(self._tick())
        yield
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        await asyncio.to_thread(self.commit.stop)
        if self._database is not None:
            self._database.close()

    # What devices ask.

    async def study(self, _request: Request) -> Response:
        """What is asked, and how far the study is."""
        return JSONResponse({**self._study.public(), **await self._progress()})

    async def join(self, request: Request) -> Response:
        """A slot for a device, with what it needs to make its report."""
        body = await self._body(request, _JOIN_BYTES)
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused("bad-request", "the body is not JSON") from None
        if not isinstance(asked, dict):
            raise Refused("bad-request", "the body is not a JSON object")
        if asked.get("study") != self._study.id:
            raise Refused("wrong-study", f"this is study {self._study.id}")
        ticket, number = _digest(asked.get("ticket")), None
        if self._inspector is not None:
            try:
                number = self._inspector.number(asked.get("invitation"))
            except InvalidInvitation as error:
                raise Refused("invitation-invalid", str(error)) from None
        given = await self.commit.submit(Join(ticket=ticket, invitation=number))
        if not isinstance(given, Granted):
            return _refuse(given)
        task = {
            "round": given.round, "client": given.slot, "seed": self._study.seed, "dim": self._study.dim,
            "bound": given.bound, "clip": None,
        }  # fmt: skip
        model = model_path(self._study, given.round)
        return JSONResponse(
            {"study": self._study.id, "task": task, "model": model, "seconds": round(given.seconds, 1)}
        )

    async def report(self, request: Request) -> Response:
        """Take a report; it is on the disk when the device is told so."""
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise Refused("bad-request", "the header Authorization must be: Bearer TICKET")
        message = await self._body(request, self._study.made_scheme.bits // 8)
        given = await self.commit.submit(Report(ticket=_digest(secret), message=message))
        if not isinstance(given, Accepted):
            return _refuse(given)
        self._accepted += not given.again
        return JSONResponse({"accepted": True, "round": given.round, "again": given.again})

    async def model(self, request: Request) -> Response:
        """The weights before a round."""
        if request.path_params["study"] != self._study.id:
            raise Refused("wrong-study", f"this is study {self._study.id}")
        if not _ROUND.fullmatch(request.path_params["round"]):
            raise Refused("not-found", f"there are {self._study.rounds} rounds")
        number = int(request.path_params["round"])
        known, weights = self._model
        if number != known:
            try:
                state = await self._read(lambda database: read_state(database, number))
            except ValueError as error:
                raise Refused("not-found", str(error)) from None
            weights = state.weights.astype("<f4").tobytes()
            self._model = number, weights
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(weights, media_type="application/octet-stream", headers=headers)

    # What operators ask.

    async def health(self, _request: Request) -> Response:
        """Whether reports can be stored now."""
        try:
            async with asyncio.timeout(5):
                given = await self.commit.submit(Probe())
        except TimeoutError:
            raise Refused("busy", "no transaction in five seconds", 5.0) from None
        return _refuse(given) if isinstance(given, Rejection) else JSONResponse({"healthy": True})

    async def metrics(self, _request: Request) -> Response:
        """Counters for Prometheus."""
        worker = {
            "reports_total": self._accepted,
            "commits_total": self.commit.commits,
            "requests_total": self.commit.requests,
            "commit_seconds_total": self.commit.seconds,
        }
        return PlainTextResponse(prometheus(await self._progress(), self._known[2], worker))

    async def openapi(self, _request: Request) -> Response:
        """The description of the service."""
        return JSONResponse(description(self._study, __version__))

    async def missing(self, _request: Request) -> Response:
        """The answer to everything else."""
        raise Refused("not-found", "this service does not have that")

    # How it is done.

    async def _body(self, request: Request, most: int) -> bytes:
        """The body, if it is neither too long nor too slow."""
        parts, length = [], 0
        try:
            async with asyncio.timeout(self.body_seconds):
                async for part in request.stream():
                    length += len(part)
                    if length > most:
                        raise Refused("too-long", f"the body has more than {most} bytes")
                    parts.append(part)
        except TimeoutError:
            raise Refused("too-slow", f"the body took more than {self.body_seconds:g} s") from None
        return b"".join(parts)

    async def _read(self, query: Callable[[Database], Any]) -> Any:
        """A query in a thread, with a connection of its own; Refused if the database is gone."""
        async with self._reading:
            try:
                return await asyncio.to_thread(self._query, query)
            except OSError as error:
                _LOG.error("the database cannot be read: %s", error)
                raise Refused("storage", "the database cannot be read now", 30.0) from None

    def _query(self, query: Callable[[Database], Any]) -> Any:
        if self._database is None:
            self._database = open_database(self._folder)
        try:
            return query(self._database)
        except OSError:
            self._database.close()
            self._database = None
            raise

    async def _progress(self) -> dict[str, Any]:
        """How far the study is, at most a second old, however many ask."""
        now = time.monotonic()
        if now > self._known[0] + 1:
            self._known = await self._read(
                lambda database: (now, progress(database, self._study), refusals(database))
            )
        return self._known[1]

    async def _tick(self) -> None:
        """End rounds, take steps, count refusals, and write the run when the study has ended."""
        pause = _TICK_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                stepped = await self._read(lambda database: tick(database, self._study))
                known = await self._progress()
                if self.commit.uncounted:
                    await self.commit.submit(Probe())
                if known["state"] == ENDED and not self._ended:
                    await self._read(
                        lambda database: write_outcome(self._folder / RUN, database, self._study)
                    )
                    self._ended = True
                pause = 0.0 if stepped else 1.0 if self._ended else _TICK_SECONDS
            except Refused:
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
                raise Refused("wrong-method", f"this takes {self.method}, not {scope['method']}")
            response = await self._handler(Request(scope, receive))
        except Refused as error:
            self._service.commit.count(error.rejection.code)
            response = _refuse(error.rejection)
            if error.rejection.code == "wrong-method":
                response.headers["allow"] = self.method
        except ClientDisconnect:
            self._service.commit.count("too-slow")
            return
        except Exception:
            _LOG.exception("internal error in %s", scope["path"])
            self._service.commit.count("internal")
            response = _refuse(Rejection(code="internal", reason="internal error"))
        await response(scope, receive, send)


def _digest(ticket: object) -> str:
    """What the service stores of a ticket: whoever reads the database cannot use it."""
    if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
        raise Refused("bad-request", "a ticket is 64 hexadecimal digits, drawn by the device")
    return hashlib.blake2b(bytes.fromhex(ticket), digest_size=16, person=b"sqsgd ticket").hexdigest()


def _refuse(given: object) -> Response:
    if not isinstance(given, Rejection):
        raise TypeError(f"internal error: {given!r} is not an answer to this request")
    return JSONResponse(given.to_dict(), given.status, given.headers)
