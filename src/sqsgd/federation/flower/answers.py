"""One round at the server: who is asked, which answers arrive in time, and which are valid reports.

Waiting has deadlines of our own. Connections that a restarting SuperLink breaks during a TLS handshake, which
Flower does not retry, are retried until the deadline. A node may announce an answer and never send it, and
Flower's grid would wait up to two hours: a slow answer is fetched in its own thread, and the round ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from sqsgd.core import Scheme
from sqsgd.core.codec import Columns, MalformedReport
from sqsgd.core.task import Task
from sqsgd.federation.flower import wire
from sqsgd.federation.node.policy import REASONS, UNPAID
from sqsgd.federation.node.server import known_reason, open_report, rejection
from sqsgd.training import Record, State

_LOG = logging.getLogger("flwr")
POLL_SECONDS = 0.2  # Flower's own grid polls every three seconds
OUTLIVES = 60.0
"""Seconds that a message outlives its round: nodes' clocks may be ahead, and the last look may take long."""
_BROKEN = (httpx.TransportError, OSError)
_AT_ONCE = 0.5  # seconds to wait for one answer before the next is tried
_LAST_LOOK = 0.05  # the same after the deadline
FLOWERS = {
    1: "the node could not load the app; its own log says why",
    2: "the node did not run the app: is it in the node's allowed-apps? Its own log says why",
    3: "the node did not fetch the request in time",
    4: "the node's answer did not arrive in time",
    5: "the node has left",
    7: "the node could not open the app's bundle",
    8: "the app crashed at the node; its own log says why",
}
"""What Flower's own errors mean, by code. Their texts are not shown: a node could write anything."""


class TooFewNodes(RuntimeError):
    """Not enough nodes were connected before the deadline."""


class ClearReplies(RuntimeError):
    """Nodes answer with their models in the clear."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one message. ``node`` is the one that was asked, whatever the reply says."""

    node: int
    asked: str
    """The id of the message that was sent."""
    reply: Message | None
    problem: str = ""
    """Why there is no reply: the node could not be asked, or its reply cannot be read."""
    sent: bool = True
    """Whether the SuperLink accepted the message."""


@dataclass(kw_only=True)
class Round:
    """A round in progress."""

    state: State
    started: float
    timeout: float | None = None
    """Seconds that the answers may take, if known."""
    tasks: dict[int, Task] = field(default_factory=dict)
    """The task of each node that was asked, in order."""
    messages: list[Message] = field(default_factory=list)
    reports: list[tuple[Task, bytes, Columns]] = field(default_factory=list)
    """Accepted reports and their columns, in the order of the tasks: sums of floats depend on it."""
    accepted: list[int] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    clear: list[int] = field(default_factory=list)
    """Nodes that answered as an app without ``SqsgdMod`` does."""
    invalid: list[int] = field(default_factory=list)
    """Nodes that sent nothing, or something other than a report or a refusal."""
    record: Record | None = None
    """What the server's step says about the round."""
    down: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Payload and serialised bytes of the message to each node, unless it could not be sent."""
    up: list[tuple[int, int]] = field(default_factory=list)
    """Payload and serialised bytes of each accepted report."""

    def asked(self, node: int, task: Task, message: Message) -> None:
        """Note a message before it is sent."""
        self.tasks[node] = task
        self.messages.append(message)
        content = message.content
        payload = sum(wire.payload_size(content[name]) for name in content if name != wire.CONFIG)
        self.down[node] = payload, wire.serialised_size(message)

    def answer(self, reply: Message) -> Answer:
        """A reply from Flower's own loop; for a node that died, the SuperLink answers in its own name."""
        node, asked = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if node not in self.tasks and reply.has_error():
            sent = {message.metadata.message_id: message.metadata.dst_node_id for message in self.messages}
            node = sent.get(asked, node)
        return Answer(node=node, asked=asked, reply=reply)

    def sort(self, scheme: Scheme, replies: Iterable[Message | Answer]) -> None:
        """Fill in the accepted and rejected answers. No reply can raise, and none counts twice."""
        found: dict[int, tuple[bytes, Columns]] = {}
        for item in replies:
            answer = self.answer(item) if isinstance(item, Message) else item
            node = answer.node
            if not answer.sent:
                self.down.pop(node, None)
            try:
                if node not in self.tasks:
                    raise MalformedReport("node", "was not asked")
                if node in found:
                    raise MalformedReport("twice", "has answered this round already")
                payload, size = _payload(answer)
                columns = open_report(scheme, payload, self.tasks[node])
            except Exception as error:  # whatever a reply holds, the round continues
                reason = rejection(error)
                self.rejected.append({"node": str(node), "reason": reason})
                if node in self.tasks and answer.sent and reason not in REASONS:
                    self.invalid.append(node)
                if node in self.tasks and error.args[:1] == ("clear",):
                    self.clear.append(node)
                continue
            found[node] = payload, columns
            self.up.append((len(payload), size))
        for node, task in self.tasks.items():
            if node in found:
                self.accepted.append(node)
                self.reports.append((task, *found[node]))
        late = "no answer in time" if self.timeout is None else f"no answer within {self.timeout:g} s"
        heard = {*found, *(int(entry["node"]) for entry in self.rejected)}
        silent = [node for node in self.tasks if node not in heard]
        self.invalid += silent
        self.rejected += [{"node": str(node), "reason": late} for node in silent]

    def name_slots(self) -> None:
        """Name slots, in their order, not nodes, in logs and files: which node had a slot is a secret."""
        slots = {str(node): task.client for node, task in self.tasks.items()}
        named = [{"slot": slots.get(entry["node"]), "reason": entry["reason"]} for entry in self.rejected]
        self.rejected = sorted(named, key=lambda entry: (entry["slot"] is None, entry["slot"]))

    @property
    def totals(self) -> dict[str, int]:
        """Payload bytes of the whole round, answered or not; a mean times a count would be rounded."""
        up, down = sum(size for size, _ in self.up), sum(size for size, _ in self.down.values())
        return {"bytes_up_total": up, "bytes_down_total": down}

    def sizes(self, named: bool) -> dict[str, Any]:
        """Mean bytes of the messages to and from a node; serialised ones only where nodes are ``named``."""
        found: dict[str, Any] = {}
        for name, pairs in (("bytes_up", self.up), ("bytes_down", list(self.down.values()))):
            payloads, serialised = zip(*pairs, strict=True) if pairs else ((), ())
            found[name] = _mean(payloads)
            found[f"{name}_serialised"] = _mean(serialised) if named else None
        return found

    @property
    def counted(self) -> str:
        """How many nodes answered, and the most frequent reason of those that did not."""
        reasons = Counter(entry["reason"] for entry in self.rejected)
        most = "".join(f" ({count}: {reason})" for reason, count in reasons.most_common(1))
        return f"{len(self.reports)} of {len(self.tasks)} that were asked{most}"

    def check_private(self) -> None:
        """Raise ClearReplies if no report arrived, and most answers are of apps without ``SqsgdMod``.

        One node cannot stop a training:
        tests/flower/test_answers.py::test_one_node_without_the_mod_stops_nobody.
        """
        if not self.reports and 2 * len(self.clear) > len(self.tasks):
            raise ClearReplies(
                f"{len(self.clear)} of {len(self.tasks)} nodes answered with what their app computed, in the "
                "clear: only the server uses sqsgd. Models would leave the nodes unprotected in every round, "
                "so the training ends here, and nothing of these answers was used. In the app, replace `from "
                "flwr.clientapp import ClientApp` by `from sqsgd.flower import ClientApp`, or add SqsgdMod() "
                "as its first mod"
            )

    @property
    def may_have_paid(self) -> set[int]:
        """Clients whose report may have left them: all but those that say they refused."""
        unpaid = {entry["node"] for entry in self.rejected if entry["reason"] in UNPAID}
        return {task.client for node, task in self.tasks.items() if str(node) not in unpaid}


def _mean(sizes: Sequence[int]) -> int:
    return round(sum(sizes) / len(sizes)) if sizes else 0


def _payload(answer: Answer) -> tuple[bytes, int]:
    """The payload of an answer, and its serialised size; raises MalformedReport."""
    reply = answer.reply
    if not isinstance(reply, Message):
        raise MalformedReport("unreadable", answer.problem or f"unreadable ({type(reply).__name__})")
    if reply.has_error():
        flowers = FLOWERS.get(reply.error.code, f"error {reply.error.code}")
        raise MalformedReport("error", known_reason(reply.error.reason, flowers))
    about = reply.metadata
    if (about.src_node_id, about.reply_to_message_id) != (answer.node, answer.asked):
        raise MalformedReport("name", "the reply is in another node's name, or to another message")
    if list(reply.content) != [wire.REPORT]:
        form = "clear" if reply.content and wire.REPORT not in reply.content else "records"
        raise MalformedReport(form, f"the reply has {len(reply.content)} records, not one report")
    record = reply.content[wire.REPORT]
    if not isinstance(record, ConfigRecord) or list(record) != [wire.PAYLOAD]:
        raise MalformedReport("records", "the report is not one payload")
    payload: Any = record[wire.PAYLOAD]
    return payload, wire.serialised_size(reply)


# ---------------------------------------------------------------- waiting


def wait_for_nodes(
    grid: Grid, least: int, seconds: float, may_ask: Callable[[int], bool] | None = None
) -> list[int]:
    """The connected nodes that may be asked, sorted, once there are enough.

    Raises:
      TooFewNodes: there were not, at the deadline.
    """
    deadline = time.monotonic() + seconds
    while True:
        nodes: list[int] = []
        try:
            nodes = sorted(filter(may_ask, grid.get_node_ids()) if may_ask else grid.get_node_ids())
        except _BROKEN as error:
            _unreachable(error, deadline)
        if len(nodes) >= least:
            return nodes
        if time.monotonic() > deadline:
            raise TooFewNodes(
                f"{len(nodes)} nodes{' that were not asked yet' if may_ask else ''} are connected, {least} "
                f"are needed, and wait-timeout = {seconds:g} seconds have passed: start more nodes, ask for "
                "fewer, or wait longer"
            )
        time.sleep(POLL_SECONDS)


def exchange(grid: Grid, messages: Sequence[Message], seconds: float) -> Iterator[Answer]:
    """Send the messages and yield each answer as it arrives, until all are there or the time is over.

    Answers are pulled one at a time: a grid that is asked for several raises for all of them if one cannot be
    read. An answer is attributed to the node that the message was sent to, whatever the answer says.
    """
    if not messages:
        return
    for message in messages:
        message.metadata.ttl = seconds + OUTLIVES
    pushed = {name for name in grid.push_messages(messages) if name}  # no id: it could not be sent
    deadline, waiting = time.monotonic() + seconds, dict[str, int]()
    for message in messages:
        name, node = message.metadata.message_id, message.metadata.dst_node_id
        if name in pushed:
            waiting[name] = node
        else:
            problem = "was not asked: the SuperLink accepted no message for it; the node may have left"
            yield Answer(node=node, asked=name, reply=None, problem=problem, sent=False)
    fetches: dict[str, Future[Answer | None]] = {}
    while waiting:
        before, reached, broken = len(waiting), False, None
        for name, node in list(waiting.items()):
            if name not in fetches:
                fetches[name] = _in_a_thread(_pull, grid, name, node)
                wait([fetches[name]], _AT_ONCE if time.monotonic() < deadline else _LAST_LOOK)
            if not fetches[name].done():
                continue  # slow: it is looked at again in the next turn
            try:
                answer = fetches.pop(name).result()
            except _BROKEN as error:
                broken = error
                continue
            reached = True
            if answer is not None:
                del waiting[name]
                yield answer
        over = time.monotonic() > deadline
        if broken is not None and not reached and not (over and len(waiting) < len(pushed)):
            _unreachable(broken, deadline)  # if only some fail, the connection is not at fault
        if over:
            return
        if len(waiting) == before:
            time.sleep(POLL_SECONDS)


def _in_a_thread(work: Callable[..., Answer | None], *arguments: Any) -> Future[Answer | None]:
    """Run the work in a daemon thread, which unlike a pool's does not keep the process alive."""
    future: Future[Answer | None] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # raised by ``result``
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _unreachable(error: Exception, deadline: float) -> None:
    """Give the SuperLink time to come back; raises the error after the deadline."""
    if time.monotonic() > deadline:
        raise error
    _LOG.warning("sqsgd: the SuperLink cannot be reached (%s): trying again", type(error).__name__)


def _pull(grid: Grid, name: str, node: int) -> Answer | None:
    """A node's answer; None: not yet there."""
    try:
        found = list(grid.pull_messages([name]))
        if not found:
            return None
        fitting = [reply for reply in found if reply.metadata.reply_to_message_id == name]
        return Answer(node=node, asked=name, reply=(fitting or found)[0])
    except _BROKEN:
        raise  # the connection to the SuperLink, not the node's answer
    except httpx.HTTPStatusError as error:
        problem = f"unreadable (the SuperLink responds {error.response.status_code} to the request for it)"
    except Exception as error:
        problem = f"unreadable ({type(error).__name__})"
    return Answer(node=node, asked=name, reply=None, problem=problem)
