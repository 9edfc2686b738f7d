"""Waiting for nodes and answers, while the SuperLink may come and go."""

import threading
import time

import httpx
import pytest
from federation import IDS, model, nodes_of, strategy


def test_a_broken_way_to_the_superlink_is_no_nodes_fault(tmp_path):
    nodes = nodes_of(tmp_path)

    def gone(message_ids):
        raise httpx.ConnectError("refused")

    nodes.pull_messages = gone
    with pytest.raises(httpx.ConnectError):
        strategy().start(nodes, model(), num_rounds=1, timeout=0.5)


@pytest.mark.parametrize("name", ["pull_messages", "get_node_ids"])
def test_a_superlink_that_comes_back_costs_nothing(tmp_path, name, caplog):
    nodes = nodes_of(tmp_path)
    kept, calls = getattr(nodes, name), []

    def broken_at_first(*arguments):
        calls.append(arguments)
        if len(calls) <= len(IDS):  # a whole look at what has come
            raise httpx.ReadError("[SSL: UNEXPECTED_EOF_WHILE_READING]")
        return kept(*arguments)

    setattr(nodes, name, broken_at_first)
    made = strategy()
    with caplog.at_level("WARNING", logger="flwr"):
        made.start(nodes, model(), num_rounds=2, timeout=30)
    assert (len(made.current.reports), made.current.rejected, made.empty) == (3, [], 0)
    assert "cannot be reached (ReadError)" in caplog.text


def test_an_answer_that_is_announced_and_never_sent_keeps_nobody_waiting(tmp_path):
    """Flower's grid would wait for its parts for ever; here the round ends in time with the other answers."""
    nodes, never = nodes_of(tmp_path), threading.Event()
    kept = nodes.pull_messages

    def pull(message_ids):
        (name,) = message_ids
        if nodes.node_of(name) == IDS[0]:
            never.wait()
        return kept(message_ids)

    nodes.pull_messages = pull
    made, started = strategy(), time.monotonic()
    made.start(nodes, model(), num_rounds=1, timeout=6)
    assert time.monotonic() - started < 60
    assert {task.client for task, _, _ in made.current.reports} == set(IDS[1:])
    (entry,) = made.current.rejected
    assert entry == {"node": str(IDS[0]), "reason": "no answer within 6 s"}
    never.set()


def test_a_node_that_left_before_it_could_be_asked_is_not_waited_for(tmp_path):
    nodes = nodes_of(tmp_path)
    kept = nodes.push_messages

    def push(messages):
        gone = [message.metadata.dst_node_id == IDS[0] for message in messages]
        return ["" if left else name for left, name in zip(gone, kept(messages), strict=True)]

    nodes.push_messages = push
    made, started = strategy(), time.monotonic()
    made.start(nodes, model(), num_rounds=1, timeout=60)
    assert time.monotonic() - started < 50
    assert len(made.current.reports) == 2
    (entry,) = made.current.rejected
    assert "was not asked: the SuperLink accepted no message for it" in entry["reason"]


def test_the_time_for_answers_begins_when_all_are_asked(tmp_path):
    """A large model takes long to be handed over; a round must not be over by then."""
    nodes = nodes_of(tmp_path)
    kept, looks = nodes.push_messages, []

    def slow(messages):
        names = kept(messages)
        time.sleep(3.2)
        return names

    def late(message_ids, pull=nodes.pull_messages):
        looks.append(message_ids)
        return pull(message_ids) if len(looks) > len(IDS) else []

    nodes.push_messages, nodes.pull_messages = slow, late
    made = strategy()
    made.start(nodes, model(), num_rounds=1, timeout=3.0)
    assert len(made.current.reports) == 3
