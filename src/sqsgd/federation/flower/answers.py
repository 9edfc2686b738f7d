"""One round at the server: who is asked, which answers arrive in time, and which are valid reports.

While answers are awaited, broken connections to the SuperLink are tried again until the deadline. A node may
announce an answer and never send it, and Flower's grid would wait two hours: answers are fetched in threads,
and the round ends.
"""

import itertools
import logging
import threading
import time
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
OUTLIVES = 60.0  # seconds that a message outlives its round: nodes' clocks may be ahead
_BROKEN = (httpx.TransportError, OSError)
_AT_ONCE = 0.5  # seconds to wait for one answer before the next is tried
_LAST_LOOK = 0.05  # the same after the deadline
LEFT = 5  # Flower's code of a node that is not connected any more
NOT_SENT = "was not asked: the SuperLink accepted no message for it; the node may have left"
FLOWERS = {
    1: "the node could not load the app; its own log says why",
    2: "the node did not run the app: is it in the node's allowed-apps? Its own log says why",
    3: "the node did not fetch the request in time",
    4: "the node's answer did not arrive in time",
    LEFT: "the node has left",
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
    """The reply to one message, or why there is none. It counts for the node that was asked."""

    message: Message
    reply: Message | None = None
    problem: str = ""

    @property
    def left(self) -> bool:
        """Whether the node left before it could answer."""
        error = self.reply.error if self.reply is not None and self.reply.has_error() else None
        return self.problem == NOT_SENT or (error is not None and error.code == LEFT)


def until_present(answers: Iterator[Answer]) -> tuple[int, Iterable[Answer]]:
    """Return the number of nodes that left before any other answer arrived, and all answers."""
    left = list[Answer]()
    for answer in answers:
        if not answer.left:
            return len(left), itertools.chain(left, [answer], answers)
        left.append(answer)
    return len(left), left


@dataclass(kw_only=True)
class Round:
    """A round in progress."""

    state: State
    started: float
    late: str = "no answer in time"
    tasks: dict[int, Task] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    reports: list[tuple[Task, Columns, float]] = field(default_factory=list)
    """Accepted reports, in the order of the tasks: sums of floats depend on it."""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    clear: int = 0
    """Number of nodes that answered as an app without ``SqsgdMod`` does."""
    invalid: list[int] = field(default_factory=list)
    """Nodes that sent nothing, or something other than a report or a refusal."""
    record: Record | None = None
    model: Any = None
    """The model as it is sent, and its digest."""
    down: dict[int, int] = field(default_factory=dict)
    """Bytes of the model and request to each node, unless they could not be sent."""

    def asked(self, node: int, task: Task, message: Message) -> None:
        self.tasks[node] = task
        self.messages.append(message)
        content = message.content
        self.down[node] = sum(content[name].count_bytes() for name in (wire.REQUEST, wire.MODEL))

    def judge(self, scheme: Scheme, answers: Iterable[Answer]) -> None:
        """Fill in the accepted and rejected answers. No reply can raise, and none counts twice."""
        found: dict[int, Columns | str] = {}
        for answer in answers:
            node = answer.message.metadata.dst_node_id
            if node in found or node not in self.tasks:
                continue
            try:
                found[node] = open_report(scheme, _payload(answer), self.tasks[node])
            except Exception as error:  # the round continues after any reply
                found[node] = reason = rejection(error)
                if answer.problem == NOT_SENT:
                    del self.down[node]
                elif reason not in REASONS:
                    self.invalid.append(node)
                self.clear += error.args[:1] == ("clear",)
        for node, task in self.tasks.items():
            outcome = found.get(node, self.late)
            if not isinstance(outcome, str):
                self.reports.append((task, outcome, 1.0))
                continue
            self.rejected.append({"node": str(node), "reason": outcome})
            if node not in found:
                self.invalid.append(node)

    def check_private(self) -> None:
        """Raise ClearReplies if no report arrived, and most answers are of apps without ``SqsgdMod``.

        tests/flower/test_answers.py::test_one_node_without_the_mod_stops_nobody.
        """
        if not self.reports and 2 * self.clear > len(self.tasks):
            who = f"{self.clear} of {len(self.tasks)} nodes answered in the clear, and nothing of it was used"
            app = "the app needs `from sqsgd.flower import ClientApp`, or SqsgdMod() as its first mod"
            raise ClearReplies(f"{who}: only the server uses sqsgd; {app}")

    @property
    def may_have_paid(self) -> set[int]:
        """Clients whose report may have left them: all but those that say they refused."""
        unpaid = {entry["node"] for entry in self.rejected if entry["reason"] in UNPAID}
        return {task.client for node, task in self.tasks.items() if str(node) not in unpaid}


def _payload(answer: Answer) -> object:
    """Return the payload of an answer. Raises MalformedReport."""
    asked, reply = answer.message.metadata, answer.reply
    if reply is None:
        raise MalformedReport("unreadable", answer.problem)
    if reply.has_error():
        flowers = FLOWERS.get(reply.error.code, f"error {reply.error.code}")
        raise MalformedReport("error", known_reason(reply.error.reason, flowers))
    about = reply.metadata
    if (about.src_node_id, about.reply_to_message_id) != (asked.dst_node_id, asked.message_id):
        raise MalformedReport("name", "the reply is in another node's name, or to another message")
    record = reply.content.get(wire.REPORT)
    if len(reply.content) != 1 or record is None:
        form = "clear" if reply.content and record is None else "records"
        raise MalformedReport(form, f"the reply has {len(reply.content)} records, not one report")
    if not isinstance(record, ConfigRecord) or list(record) != [wire.PAYLOAD]:
        raise MalformedReport("records", "the report is not one payload")
    return record[wire.PAYLOAD]


# ---------------------------------------------------------------- waiting


def wait_for_nodes(
    grid: Grid, least: int, seconds: float, may_ask: Callable[[int], bool] | None = None
) -> list[int]:
    """The connected nodes that may be asked, sorted, once there are enough; TooFewNodes at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        nodes: list[int] = []
        try:
            nodes = sorted(node for node in grid.get_node_ids() if may_ask is None or may_ask(node))
        except _BROKEN as error:
            _unreachable(error, deadline)
        if len(nodes) >= least:
            return nodes
        if time.monotonic() > deadline:
            found = f"{len(nodes)} nodes{' that were not asked yet' if may_ask else ''} are connected"
            raise TooFewNodes(f"{found}, {least} are needed, and wait-timeout = {seconds:g} seconds are over")
        time.sleep(POLL_SECONDS)


def exchange(grid: Grid, messages: Sequence[Message], seconds: float) -> Iterator[Answer]:
    """Send the messages and yield each answer as it arrives, until all are there or the time is over.

    Answers are pulled one at a time, since one that cannot be read would raise for all. An answer is
    attributed to the node that was asked, independently of its content.
    """
    if not messages:
        return
    for message in messages:
        message.metadata.ttl = seconds + OUTLIVES
    pushed = {name for name in grid.push_messages(messages) if name}  # no id: it could not be sent
    deadline, waiting = time.monotonic() + seconds, dict[str, Message]()
    for message in messages:
        if message.metadata.message_id in pushed:
            waiting[message.metadata.message_id] = message
        else:
            yield Answer(message=message, problem=NOT_SENT)
    fetches: dict[str, Future[Answer | None]] = {}
    while waiting:
        before, reached, broken = len(waiting), False, None
        for name, message in list(waiting.items()):
            if name not in fetches:
                fetches[name] = _fetch(grid, message)
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


def _fetch(grid: Grid, message: Message) -> Future[Answer | None]:
    """Pull in a daemon thread, which unlike a pool's does not keep the process alive."""
    future: Future[Answer | None] = Future()

    def run() -> None:
        try:
            future.set_result(_pull(grid, message))
        except BaseException as error:  # raised by ``result``
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _unreachable(error: Exception, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise error
    _LOG.warning("sqsgd: the SuperLink cannot be reached (%s): trying again", type(error).__name__)


def _pull(grid: Grid, message: Message) -> Answer | None:
    name = message.metadata.message_id
    try:
        found = list(grid.pull_messages([name]))
        if not found:
            return None
        fitting = [reply for reply in found if reply.metadata.reply_to_message_id == name]
        return Answer(message=message, reply=(fitting or found)[0])
    except _BROKEN:
        raise  # the connection to the SuperLink, not the node's answer
    except httpx.HTTPStatusError as error:
        problem = f"unreadable (the SuperLink responds {error.response.status_code} to the request for it)"
    except Exception as error:
        problem = f"unreadable ({type(error).__name__})"
    return Answer(message=message, problem=problem)
