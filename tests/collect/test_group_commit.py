"""Many requests share a transaction, and each waits for it."""

import asyncio
import threading
from collections import Counter

from sqsgd.federation.collect.database import Conflict, DatabaseFailed
from sqsgd.federation.collect.intake import Accepted, Probe, Rejection
from sqsgd.federation.collect.service import GroupCommit

YES = Accepted(round=0, again=False)


class Connection:
    """What GroupCommit does with a connection besides handing it on."""

    closed = 0

    def close(self):
        Connection.closed += 1


def run(work, use, opened=Connection):
    async def main():
        commit = GroupCommit(opened, work)
        try:
            return await use(commit)
        finally:
            await asyncio.to_thread(commit.stop)

    return asyncio.run(main())


def test_nobody_is_told_yes_before_the_commit():
    release, begun = threading.Event(), threading.Event()

    def work(_database, requests, _refused):
        begun.set()
        release.wait(30)
        return [YES] * len(requests)

    async def use(commit):
        waiting = asyncio.create_task(commit.submit(Probe()))
        await asyncio.to_thread(begun.wait, 30)
        early = waiting.done()
        release.set()
        return early, await waiting

    assert run(work, use) == (False, YES)


def test_what_arrives_during_a_transaction_goes_into_the_next():
    sizes, release = [], threading.Event()

    def work(_database, requests, _refused):
        sizes.append(len(requests))
        release.wait(30)
        return [YES] * len(requests)

    async def use(commit):
        first = asyncio.create_task(commit.submit(Probe()))
        while not sizes:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(commit.submit(Probe())) for _ in range(50)]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(first, *others)

    assert run(work, use) == [YES] * 51
    assert sizes == [1, 50]


def test_a_failed_commit_is_a_no_to_all(caplog):
    broken, counted = [True], Counter()

    def work(_database, requests, refused):
        if broken:
            raise DatabaseFailed("the disk is full")
        counted.update(refused)
        return [YES] * len(requests)

    async def use(commit):
        commit.count("malformed")
        first = await commit.submit(Probe())
        failure = commit.failure
        broken.clear()
        return first, failure, await commit.submit(Probe()), commit.failure

    Connection.closed = 0
    first, failure, second, after = run(work, use)
    assert isinstance(first, Rejection)
    assert (first.code, first.status) == ("storage", 503)
    assert (failure, second, after) == ("the disk is full", YES, "")
    assert counted == {"malformed": 1}  # counted later, not lost
    assert Connection.closed == 2  # it connected anew
    assert "no report is accepted until this is solved: the disk is full" in caplog.text
    assert "the database works again" in caplog.text


def test_a_conflict_is_repeated_and_an_internal_error_is_a_no_and_not_the_end(caplog):
    tries = []

    def work(_database, requests, _refused):
        tries.append(len(requests))
        if len(tries) < 3:
            raise Conflict("another worker was quicker")
        if len(tries) == 4:
            raise ZeroDivisionError
        return [YES] * len(requests)

    async def use(commit):
        return [await commit.submit(Probe()) for _ in range(3)]

    repeated, failed, after = run(work, use)
    assert (repeated, failed.code, after) == (YES, "storage", YES)
    assert tries == [1] * 5
    assert "internal error" in caplog.text


def test_stopping_answers_what_waits():
    async def use(commit):
        waiting = [asyncio.create_task(commit.submit(Probe())) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.to_thread(commit.stop)
        return await asyncio.gather(*waiting)

    assert run(lambda _, requests, __: [YES] * len(requests), use) == [YES] * 10
