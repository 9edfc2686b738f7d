"""The service: what devices ask, and what they are told. Every worker runs one; none keeps anything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from sqsgd._internal import checks
from sqsgd.core import Aggregate
from sqsgd.core.random import secure_rng
from sqsgd.federation.collect import intake, oblivious, rounds, tokens
from sqsgd.federation.collect.database import Conflict, Database, open_database
from sqsgd.federation.collect.intake import Asked, Rejection
from sqsgd.federation.collect.oblivious import Answer, Malformed, Request
from sqsgd.federation.collect.study import GATEWAY_KEY, INVITED, PAGE, RUN, Study, invitation_number, read_key

_LOG = logging.getLogger("sqsgd.federation.collect")
_MOST, _WAITING, _TRIES = 1000, 20000, 5
_TICK_SECONDS, _FAILED_SECONDS, _CONNECTIONS, _PADDED = 0.25, 5.0, 4000, 1024
_SEALED = 128  # bytes by which an encapsulated request may exceed the inner one
_ROUND = re.compile(r"0|[1-9][0-9]{0,6}")
JSON, BYTES = "application/json", "application/octet-stream"
TOKEN_REQUEST, TOKEN_ANSWER = "application/private-token-request", "application/private-token-response"
_KEY_PROBLEM = "https://iana.org/assignments/http-problem-types#ohttp-key"


class Connection:
    """A database that is opened when it is needed, and again after it failed; for one thread at a time.

    The thread of a task that was cancelled goes on, and SQLite crashes if its connection is closed meanwhile:
    tests/collect/test_service.py::test_a_connection_is_not_closed_while_it_works.
    """

    def __init__(self, open_database: Callable[[], Database]) -> None:
        self._open, self._lock = open_database, threading.RLock()
        self._database: Database | None = None

    def use(self, work: Callable[[Database], Any]) -> Any:
        with self._lock:
            try:
                self._database = self._database or self._open()
                return work(self._database)
            except OSError as error:
                if not isinstance(error, Conflict):
                    self.close()
                raise

    def close(self) -> None:
        with self._lock, contextlib.suppress(Exception):
            database, self._database = self._database, None
            if database is not None:
                database.close()


class Commits:
    """Requests that come during a transaction go into the next one: one connection, one thread at a time.

    Guarantees
    ----------
    * No answer is given before its transaction is on the disk; if that fails, the answer is no:
      tests/collect/test_service.py::test_nobody_is_told_yes_before_the_commit,
      ::test_a_failed_commit_is_a_no_to_all.
    """

    def __init__(self, open_database: Callable[[], Database], study: Study) -> None:
        self._connection, self._study = Connection(open_database), study
        self._waiting: list[tuple[Asked, asyncio.Future[intake.Answer]]] = []
        self._running: asyncio.Task[None] | None = None
        self.refused: Counter[str] = Counter()  # not stored yet
        self.failure = ""  # why the last transaction failed; empty if it did not

    async def submit(self, asked: Asked) -> None:
        """Returns when the request is granted, after its transaction; raises a Rejection if it is not."""
        if len(self._waiting) >= _WAITING:
            raise Rejection("busy", "too many requests are waiting", 5.0)
        future: asyncio.Future[intake.Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        if (given := await future) is not None:
            raise given.with_traceback(None)  # many requests may share it

    async def _run(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            refused, self.refused = self.refused, Counter()
            requests = [asked for asked, _ in taken]
            answers = await asyncio.to_thread(self._transaction, requests, refused)
            if self.failure:
                self.refused += refused
            for (_, future), given in zip(taken, answers, strict=True):
                if not future.done():  # the device may have gone
                    future.set_result(given)
            if self.failure:
                await asyncio.sleep(0.2)  # a broken database is not asked all the time
        self._running = None

    async def stop(self) -> None:
        if self._running is not None:
            await self._running
        self._connection.close()

    def _transaction(self, requests: list[Asked], refused: Counter[str]) -> list[intake.Answer]:
        failure = ""
        for _ in range(_TRIES):
            try:
                answers: list[intake.Answer] = self._connection.use(
                    lambda database: intake.answer(database, self._study, requests, refused)
                )
            except Exception as error:
                # Of the database's errors the kind alone is logged: their text may hold values of rows.
                failure = type(error.__cause__ or error).__name__
                if isinstance(error, Conflict):
                    continue
                if not isinstance(error, OSError):
                    _LOG.exception("internal error: no request of this transaction was accepted")
                break
            if self.failure:
                _LOG.warning("the database works again")
            self.failure = ""
            return answers
        if failure != self.failure:
            _LOG.error("no report is accepted until this is solved: the database fails with %s", failure)
        self.failure = failure
        return [Rejection("storage", "the report cannot be stored now", 30.0)] * len(requests)


class Service:
    """One worker of a study: an ASGI application."""

    body_seconds = 10.0
    commits: Commits

    def __init__(self, folder: Path, study: Study) -> None:
        self._folder, self._study = folder, study
        self._model = (-1, b"")  # the round that was asked for last, and its weights
        self._known: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._open = functools.partial(open_database, folder)
        self._reading, self._connection = asyncio.Lock(), Connection(self._open)
        self._gateway, self._ended, self._stuck = oblivious.Gateway([]), False, False
        self._challenge = tokens.challenge(study.id)
        path = folder / tokens.KEY  # without it this worker issues no tokens
        self._issuer = tokens.read_token_key(path, study.tokens) if path.is_file() else None
        path = folder / GATEWAY_KEY  # without it this worker replaces no keys
        self._signer = read_key(path, study.gateway_key) if path.is_file() else None
        page = folder / PAGE
        self._page: ASGIApp | None = StaticFiles(directory=page, html=True) if page.is_dir() else None
        relay = re.match(r"https?://[^/]+", study.relay)
        also = f"img-src 'self' data:; connect-src 'self' {relay[0] if relay else ''}"
        allowed = f"default-src 'self'; {also}; frame-ancestors 'none'"
        self._fixed = {
            "content-security-policy": allowed, "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }  # fmt: skip

    # ------------------------------------------------------------ HTTP

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return

        async def fixed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_pairs(self._fixed)]}
            await send(message)

        path, method = scope["path"], scope["method"]
        if self._page is not None and method in ("GET", "HEAD") and not self._route(path):
            with contextlib.suppress(HTTPException, OSError, ValueError):  # no such file: answered below
                await self._page({**scope, "root_path": ""}, receive, fixed)
                return
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            given = await self.answer(Request(method, path, fields, await self._body(receive, path)))
        except Rejection as error:
            given = self._refuse(error)
        except ConnectionError:
            self.commits.refused["too-slow"] += 1
            return
        headers = _pairs({**given.fields, "content-length": str(len(given.body))})
        await fixed({"type": "http.response.start", "status": given.status, "headers": headers})
        sent = b"" if method == "HEAD" else given.body
        await fixed({"type": "http.response.body", "body": sent})

    async def _body(self, receive: Receive, path: str) -> bytes:
        body, most = b"", self._study.request_bytes + _SEALED
        if path == "/token":
            most = tokens.REQUEST_BYTES * self._study.reports
        try:
            async with asyncio.timeout(self.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    body += bytes(message.get("body", b""))
                    if len(body) > most:
                        raise Rejection("too-long", f"the body has more than {most} bytes")
                    if not message.get("more_body", False):
                        return body
        except TimeoutError:
            raise Rejection("too-slow", f"the body took more than {self.body_seconds:g} s") from None

    # ------------------------------------------------------------ requests, plain or encapsulated

    def _route(self, path: str) -> tuple[str, str, Callable[[Request], Any]] | None:
        """Method, content type and handler of a path."""
        if path.startswith("/model/"):
            return "GET", "", self._get_model
        routes: dict[str, tuple[str, str, Callable[[Request], Any]]] = {
            "/study": ("GET", "", self._get_study),
            "/round": ("GET", "", self._get_round),
            "/health": ("GET", "", self._get_health),
            "/token": ("POST", TOKEN_REQUEST, self._post_token),
            "/report": ("POST", JSON, self._post_report),
            oblivious.WELL_KNOWN: ("GET, POST", "", self._gateway_resource),
        }
        return routes.get(path)

    async def answer(self, asked: Request, *, inside: bool = False) -> Answer:
        """The answer to a request, which may have been ``inside`` of another. What is refused is counted."""
        try:
            route = self._route(asked.path)
            if route is None or (inside and asked.path in (oblivious.WELL_KNOWN, "/health")):
                raise Rejection("not-found", "this service does not have this resource")
            methods, kind, handler = route
            if ("GET" if asked.method == "HEAD" else asked.method) not in methods.split(", "):
                refused = self._refuse(Rejection("wrong-method", f"this takes {methods}"))
                return refused._replace(fields={**refused.fields, "allow": methods})
            _check_kind(asked, kind)
            return await handler(asked)  # type: ignore[no-any-return]
        except Rejection as error:
            return self._refuse(error)
        except Exception:
            _LOG.exception("internal error in %s", asked.path)
            return self._refuse(Rejection("internal", "internal error"))

    def _refuse(self, given: Rejection) -> Answer:
        self.commits.refused[given.code] += 1
        wait = {"retry-after": str(max(1, round(given.seconds)))} if given.status in (429, 503) else {}
        body = {"error": given.code, "reason": given.reason, "what_to_do": given.what_to_do}
        return _json(body, given.status, wait)

    async def _gateway_resource(self, asked: Request) -> Answer:
        """RFC 9458: the keys, or a request inside of a request."""
        if asked.method != "POST":
            fields = {"content-type": oblivious.KEYS, "cache-control": "max-age=3600"}
            return Answer(200, fields, self._gateway.signed)
        _check_kind(asked, oblivious.REQUEST)
        try:
            content, seal = self._gateway.open(asked.body)
        except Malformed as error:
            self.commits.refused["bad-request"] += 1
            body = {"title": str(error), **({"type": _KEY_PROBLEM} if error.unknown_key else {})}
            return _json(body, 400, {"content-type": "application/problem+json"})
        try:
            given = await self.answer(oblivious.read_request(content), inside=True)
        except Malformed as error:
            given = self._refuse(Rejection("bad-request", str(error)))
        kept = {name: given.fields[name] for name in ("content-type", "retry-after") if name in given.fields}
        sealed = seal(oblivious.pack_answer(given._replace(fields=kept), _PADDED))
        return Answer(200, {"content-type": oblivious.ANSWER, "cache-control": "private, no-store"}, sealed)

    async def _get_study(self, _asked: Request) -> Answer:
        return Answer(200, {"content-type": JSON}, self._study.description)

    async def _get_round(self, _asked: Request) -> Answer:
        return _json(await self._progress())

    async def _get_health(self, _asked: Request) -> Answer:
        if self._stuck:
            raise Rejection("internal", "the round cannot be ended: see the service's log")
        try:
            async with asyncio.timeout(5):
                await self.commits.submit(intake.Probe())
        except TimeoutError:
            raise Rejection("busy", "no transaction in five seconds", 5.0) from None
        return _json({"healthy": True})

    async def _get_model(self, asked: Request) -> Answer:
        _, _, study, *rest = asked.path.split("/")
        self._check_study(study)
        if len(rest) != 1 or not _ROUND.fullmatch(rest[0]):
            raise Rejection("not-found", f"there are {self._study.rounds} rounds")
        number, (known, weights) = int(rest[0]), self._model
        if number != known:
            try:
                state = await self._read(lambda database: rounds.read_state(database, number))
            except ValueError as error:
                raise Rejection("not-found", str(error)) from None
            weights = state.weights.astype("<f4").tobytes()
            self._model = number, weights
        kept = {"content-type": BYTES, "cache-control": "public, max-age=31536000, immutable"}
        return Answer(200, kept, weights)

    async def _post_token(self, asked: Request) -> Answer:
        """Sign blinded messages, once for each invitation; the same again for the same request."""
        study, number = self._study, os.urandom(16).hex()
        if (issuer := self._issuer) is None:
            raise Rejection("not-found", "this worker issues no tokens")
        with _refusing("bad-request"):
            parts = tokens.blinded_parts(study.tokens, asked.body, study.reports)
        if study.admission == INVITED:
            kind, _, invitation = asked.fields.get("authorization", "").partition(" ")
            with _refusing("invitation-invalid"):
                number = invitation_number(invitation * (kind.lower() == "bearer"), study.id, study.key)
        await self.commits.submit(intake.Issue(number, hashlib.sha256(asked.body).hexdigest()))
        signed = await asyncio.to_thread(lambda: b"".join(tokens.sign(issuer, part) for part in parts))
        return Answer(200, {"content-type": TOKEN_ANSWER}, signed)

    async def _post_report(self, asked: Request) -> Answer:
        """Accept a report. The device gets its answer after the report is on the disk."""
        found = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(asked.body)
        if not isinstance(found, dict) or found.keys() != {"study", "round", "token", "report"}:
            wanted = "a JSON object with study, round, token and report"
            raise Rejection("bad-request", f"the body is not {wanted}")
        self._check_study(found["study"])
        with _refusing("bad-request"):
            number = checks.integer("round", found["round"], 0, self._study.rounds - 1)
            token, message = (tokens.read_base64url(name, found[name]) for name in ("token", "report"))
        with _refusing("token-invalid"):
            nonce = self._study.tokens.nonce(token, self._challenge)
        await self.commits.submit(intake.read_report(self._study, nonce.hex(), number, message))
        return _json({"accepted": True, "round": number})

    def _check_study(self, named: object) -> None:
        if named != self._study.id:
            raise Rejection("wrong-study", f"this is study {self._study.id}")

    # ------------------------------------------------------------ the database

    async def _read(self, query: Callable[[Database], Any]) -> Any:
        """Run a query in a thread, with its own connection. Raises a Rejection if the database is gone."""
        async with self._reading:
            try:
                return await asyncio.to_thread(self._connection.use, query)
            except OSError as error:
                _LOG.error("the database cannot be read: %s", type(error).__name__)
                raise Rejection("storage", "the database cannot be read now", 30.0) from None

    async def _progress(self) -> dict[str, Any]:
        """How far the study is, at most a second old, however many ask."""
        now = time.monotonic()
        if now > self._known[0] + min(1.0, self._study.round_seconds / 20):
            self._known = now, await self._read(lambda database: rounds.progress(database, self._study))
        return self._known[1]

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.commits = Commits(self._open, self._study)
        with contextlib.suppress(Rejection):
            await self._follow_keys()
        ticking = asyncio.create_task(self._tick())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        await self.commits.stop()
        self._connection.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _follow_keys(self) -> None:
        keys, signed = await self._read(rounds.gateway_keys)
        if signed != self._gateway.signed:
            self._gateway = oblivious.Gateway(keys, signed)

    async def _tick(self) -> None:
        """End rounds, take steps, follow the gateway's keys, count refusals, write the run at the end."""
        pause, usual = _TICK_SECONDS, min(_TICK_SECONDS, self._study.round_seconds / 10)
        while True:
            await asyncio.sleep(pause)
            try:
                stepped = await self._read(lambda database: rounds.tick(database, self._study, self._signer))
                await self._follow_keys()
                if self.commits.refused:
                    await self.commits.submit(intake.Probe())
                if not self._ended and (await self._progress())["state"] == intake.ENDED:
                    write = functools.partial(rounds.write_outcome, self._folder / RUN, study=self._study)
                    await self._read(write)
                    self._ended = True
                pause, self._stuck = 0.0 if stepped else 1.0 if self._ended else usual, False
            except Rejection:
                pause = 2.0
            except Exception:
                _LOG.exception("internal error in the end of a round; it is tried again")
                pause, self._stuck = _FAILED_SECONDS, True


def _pairs(fields: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in fields.items()]


def _json(content: object, status: int = 200, fields: Mapping[str, str] = {}) -> Answer:
    body = json.dumps(content, separators=(",", ":")).encode()
    return Answer(status, {"content-type": JSON, "cache-control": "no-store", **fields}, body)


def _check_kind(asked: Request, kind: str) -> None:
    """Browsers send others without a preflight, from pages of any origin."""
    if kind and asked.fields.get("content-type", "").split(";")[0].strip() != kind:
        raise Rejection("bad-request", f"the header Content-Type must be {kind}")


@contextlib.contextmanager
def _refusing(code: str) -> Iterator[None]:
    """What is wrong with a request becomes a refusal."""
    try:
        yield
    except ValueError as error:
        raise Rejection(code, str(error)) from None


def prepare(folder: Path, host: str, port: int) -> tuple[uvicorn.Server, socket.socket, str]:
    """Return a server that is ready to run, its socket, and its address; anything wrong is found here."""
    with rounds.opened(folder) as (study, _):
        pass
    # The kernels and tables are loaded now, so that the first device does not wait for them.
    scheme, task = study.made_scheme, intake.task_of(study, 0)
    (codes,) = scheme.open(scheme.encode(np.zeros(study.dim, np.float32), task, secure_rng()), task)
    total = Aggregate(scheme)
    total.add_counts(task, np.bincount(codes, minlength=scheme.symbols))
    total.mean()
    config = uvicorn.Config(
        Service(folder, study), ws="none", lifespan="on", log_config=None,
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
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not a line for each invalid request
    server, listener, address = prepare(folder, host, port)
    if host not in ("127.0.0.1", "::1", "localhost"):
        _LOG.warning("without TLS everybody on the way sees the reports: put a proxy with TLS in front")
    tell(address)
    server.run(sockets=[listener])
