"""Many requests share a transaction: each waits until what it changed is on the disk."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from sqsgd.collect.database import Conflict, Database, DatabaseFailed
from sqsgd.collect.intake import Answer, Request
from sqsgd.collect.rejections import Rejection

_LOG = logging.getLogger("sqsgd.collect")
_MOST, _WAITING, _TRIES = 1000, 20000, 5
_Work = Callable[[Database, Sequence[Request], Counter[str]], list[Answer]]
_Waiting = tuple[Request, "asyncio.Future[Answer]"]


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

    async def submit(self, request: Request) -> Answer:
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

    def _transaction(self, requests: Sequence[Request], refused: Counter[str]) -> list[Answer]:
        started = time.perf_counter()
        for attempt in range(_TRIES):
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
                _LOG.info("transaction repeated (%d): %s", attempt + 1, error)
                failure = str(error)
            except Exception as error:
                failure = str(error)
                if not isinstance(error, DatabaseFailed):
                    _LOG.exception("internal error: no request of this transaction was accepted")
                self._forget()
                break
        if failure != self.failure:
            _LOG.error("no report is accepted until this is solved: %s", failure)
        self.failure = failure
        with self._wake:
            self._refused += refused
        time.sleep(0.2)  # a broken database is not asked all the time
        return [Rejection(code="storage", reason="the report cannot be stored now", seconds=30.0)] * len(
            requests
        )

    def _forget(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._database is not None:
            try:
                self._database.close()
            except Exception:
                _LOG.info("a broken connection could not be closed")
            self._database = None


def _resolve(taken: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    for (_, future), answer in zip(taken, answers, strict=True):
        if not future.done():  # the device may have gone
            future.set_result(answer)
