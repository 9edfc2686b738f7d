"""What a node's answer makes Flower's own grid do: the real grid, before a SuperLink that is made here."""

import inspect
import json
import threading
import time

import httpx
import pytest
from federation import IDS, deflated, inflated, make_app, model, node_context, strategy
from flwr.app import Array, ConfigRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body, get_object_id
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.supercore.run import Run
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from sqsgd.flower import parts, wire
from sqsgd.flower.answers import ClearReplies
from sqsgd.flower.parts import Limits, limited

HOSTILE = IDS[0]


class Link:
    """A SuperLink's answers to the grid's requests, with nodes behind it that answer at once."""

    def __init__(self, folder, spoil) -> None:
        self.contexts = {node: node_context(node, folder / str(node)) for node in IDS}
        self.app, self.spoil, self.asked, self.objects = make_app(), spoil, {}, {}
        self.replies, self.fetched, self.spoiled = {}, 0, (HOSTILE,)

    def GetNodes(self, _):  # noqa: N802
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in IDS])

    def PushMessages(self, request):  # noqa: N802
        names = [message.metadata.message_id for message in request.messages_list]
        for name, message in zip(names, request.messages_list, strict=True):
            self.asked[name] = message.metadata.dst_node_id
        every = http_grid.iterate_object_tree
        wanted = {part.object_id for tree in request.message_object_trees for part in every(tree)}
        return PushAppMessagesResponse(message_ids=names, objects_to_push=wanted, session_id="1")

    def PushObject(self, request):  # noqa: N802
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def answer(self, name):
        """The node's reply, and the parts of it that are stored here."""
        arrived = inflated(name, self.objects, name)
        reply = self.app(arrived, self.contexts[self.asked[name]])
        return reply, deflated(reply)

    def PullMessages(self, request):  # noqa: N802
        (name,) = request.message_ids
        reply, contents = self.replies[name]
        if self.asked[name] in self.spoiled:
            contents = self.spoil(reply, contents)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.objects |= contents
        tree = ObjectTree(object_id=reply.object_id)
        tree.children.extend(ObjectTree(object_id=part) for part in contents if part != reply.object_id)
        proto = message_to_proto(http_grid.remove_content_from_message(reply))
        return PullAppMessagesResponse(messages_list=[proto], message_object_trees=[tree])

    def PullObject(self, request):  # noqa: N802
        content = self.objects.get(request.object_id, b"")
        self.fetched += len(content)
        return PullObjectResponse(object_found=True, object_available=bool(content), object_content=content)

    def ConfirmMessageReceived(self, _):  # noqa: N802
        pass


class RealGrid(HttpGrid):
    """Flower's own; the nodes have answered when the messages are out."""

    def push_messages(self, messages):
        names = list(super().push_messages(messages))
        self._client.replies |= {name: self._client.answer(name) for name in names}
        return names


def trained(tmp_path, spoil, rounds=1, timeout=5.0, spoiled=(HOSTILE,)):
    link, grid = Link(tmp_path, spoil), RealGrid(token="of no use")  # noqa: S106
    link.spoiled = spoiled
    grid._client = link
    grid.set_run(Run.create_empty(7))
    made = strategy()
    made.start(grid, model(), num_rounds=rounds, timeout=timeout)
    return made, link


def bomb(reply, contents):
    """One chunk, named a hundred thousand times by an array: three kilobytes grow to a hundred gigabytes."""
    chunk = ArrayChunk(memoryview(bytes(1_000_000))).deflate()
    one = Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=b"1")
    body = json.loads(one.deflate().partition(b"\0")[2]) | {"arraychunk_ids": [0] * 100_000}
    text = json.dumps(body).encode()
    array = f"Array {get_object_id(chunk)} {len(text)}".encode() + b"\0" + text
    return {**contents, get_object_id(chunk): chunk, get_object_id(array): array}


def another_kind(reply, contents):
    """As many parts as a report has, but one is an array's chunk."""
    (name,) = [part for part, content in contents.items() if content.startswith(b"ConfigRecord")]
    chunk = ArrayChunk(memoryview(b"1")).deflate()
    return {**{part: c for part, c in contents.items() if part != name}, get_object_id(chunk): chunk}


def without_mod(reply, contents):
    """What a plain Flower app answers."""
    reply.content = RecordDict({"arrays": model()})
    return deflated(reply)


def large(reply, contents):
    (name,) = [part for part, content in contents.items() if content.startswith(b"ConfigRecord")]
    body = ConfigRecord({wire.PAYLOAD: bytes(3_000_000)})
    content = add_header_to_object_body(body.deflate(), body)
    return {**{part: c for part, c in contents.items() if part != name}, get_object_id(content): content}


def server_error(reply, contents):
    request = httpx.Request("POST", "https://superlink/v1/runtime/pull-messages")
    raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(500, request=request))


def broken(reply, contents):
    raise httpx.ReadTimeout("a message that the SuperLink chokes on")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (bomb, "the answer has 5 parts and a report has 3: nothing was fetched"),
        (without_mod, "does the node's app use SqsgdMod?"),
        (another_kind, "the answer holds 'ArrayChunk', which is not part of a report"),
        (large, "bytes, more than"),
        (server_error, "unreadable (the SuperLink responds 500 to the request for it)"),
        (broken, "no answer within 5 s"),
    ],
)
def test_what_one_node_announces_costs_the_others_nothing(tmp_path, spoil, reason):
    made, _ = trained(tmp_path, spoil)
    assert {task.client for task, _, _ in made.current.reports} == set(IDS[1:])
    (entry,) = made.current.rejected
    assert entry["node"] == str(HOSTILE)
    assert reason in entry["reason"]


def test_models_in_the_clear_from_everyone_are_not_fetched_and_end_the_training(tmp_path):
    with pytest.raises(
        ClearReplies, match="3 of 3 nodes answered with what their app computed, in the clear"
    ):
        trained(tmp_path, without_mod, rounds=9, spoiled=IDS)


def test_more_parts_than_a_report_has_are_not_even_fetched(tmp_path):
    made, link = trained(tmp_path, bomb)
    assert len(made.current.reports) == 2
    assert link.fetched < 5_000


def test_flowers_grid_by_itself_would_fetch_all_of_it(tmp_path, monkeypatch):
    """The test above fails where our limits are not kept."""
    monkeypatch.setattr(parts, "_pull_objects", parts._FLOWERS)
    _, link = trained(tmp_path, bomb)
    assert link.fetched > 1_000_000


def test_honest_answers_pass(tmp_path):
    made, _ = trained(tmp_path, lambda reply, contents: contents, rounds=3)
    assert (len(made.current.reports), made.current.rejected) == (3, [])


def test_a_fetch_that_was_given_up_ends_by_itself_round_after_round(tmp_path):
    """One that is announced and never sent. Nothing of it is left soon after the last round."""

    def withheld(reply, contents):
        return {reply.object_id: contents[reply.object_id], get_object_id(b"never sent"): b""}

    before, started = threading.active_count(), time.monotonic()
    made, _ = trained(tmp_path, withheld, rounds=4, timeout=4.0)
    assert time.monotonic() - started < 300  # kernels may have to be compiled first
    assert len(made.current.reports) == 2
    assert threading.active_count() - before < 12  # of this round and the one before
    while threading.active_count() > before and time.monotonic() - started < 600:
        time.sleep(0.1)
    assert threading.active_count() <= before


def unavailable(_):
    raise ObjectUnavailableError("never")


def test_parts_are_waited_for_no_longer_than_the_round_lasts():
    started = time.monotonic()
    with limited(Limits(deadline=started + 1.5)), pytest.raises(ObjectPullError):
        http_grid.pull_objects(["a"], unavailable)
    assert 1.4 < time.monotonic() - started < 60
    assert "pull_objects(" in inspect.getsource(HttpGrid.pull_messages)  # the name that is replaced


def test_a_late_fetch_keeps_the_deadline_of_its_own_round():
    """It gets its parts after its round is over, during another round or after the last."""
    go, ended = threading.Event(), []

    def late():
        with limited(Limits(deadline=time.monotonic())):
            go.wait()
            with pytest.raises(ObjectPullError):
                http_grid.pull_objects(["a"], unavailable)
        ended.append(time.monotonic())

    thread = threading.Thread(target=late)
    thread.start()
    with limited(Limits(deadline=time.monotonic() + 600)):
        released = time.monotonic()
        go.set()
        thread.join(120)
    assert ended
    assert ended[0] - released < 120
    assert getattr(parts._thread, "limits", None) is None


def test_other_threads_fetch_as_flower_does():
    with limited(Limits(deadline=time.monotonic())):
        pass
    many = [str(i) for i in range(20)]
    assert len(http_grid.pull_objects(many, lambda name: name.encode())) == 20
