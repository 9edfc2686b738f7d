"""A disk that is full at any of a node's writes: nothing leaves that is not paid for."""

import errno
import os

import pytest
from federation import lines, make_app, message, node_context, request

from sqsgd import Ledger
from sqsgd.node import reasons

WRITES = 6
"""Of a node's first answer; the last is the line in answers.jsonl."""


def answered(monkeypatch, folder, fail_at=0):
    """A node's reply, and how often it wrote."""
    calls = []

    def full_at_once(write):
        def attempt(*arguments):
            calls.append(arguments)
            if len(calls) == fail_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(*arguments)

        return attempt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_at_once(os.write))
        patch.setattr(os, "pwrite", full_at_once(os.pwrite))
        return make_app()(message(request()), node_context(5, folder)), len(calls)


def test_so_many_writes_there_are(tmp_path, monkeypatch):
    reply, count = answered(monkeypatch, tmp_path)
    assert (reply.has_error(), count) == (False, WRITES)


@pytest.mark.parametrize("fail_at", range(1, WRITES))
def test_nothing_leaves_and_the_ledger_stays_good(tmp_path, monkeypatch, fail_at):
    reply, _ = answered(monkeypatch, tmp_path, fail_at)
    assert reply.error.reason == reasons.FAILED
    again, _ = answered(monkeypatch, tmp_path)  # there is room again
    paid_before = fail_at == WRITES - 1  # the report itself was not kept: it was never sent, nor will be
    assert (again.error.reason == reasons.ANSWERED) if paid_before else not again.has_error()
    assert Ledger(tmp_path / "ledger").spent == 200


def test_a_line_for_people_that_cannot_be_written_keeps_no_paid_report_back(tmp_path, monkeypatch):
    reply, _ = answered(monkeypatch, tmp_path, WRITES)
    assert not reply.has_error()
    assert Ledger(tmp_path / "ledger").spent == 200
    assert lines(tmp_path / "answers.jsonl") == []
