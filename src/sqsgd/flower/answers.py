"""One round at the server: the requests, the answers, and which of them are valid reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message

from sqsgd.codec import Columns, MalformedReport
from sqsgd.core import Scheme
from sqsgd.flower import wire
from sqsgd.node.reasons import REASONS, UNPAID
from sqsgd.task import Task
from sqsgd.training import Record, State

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
    clear: bool = False
    """Whether there is a reply that has the parts of an app's own, and was not fetched."""


class ClearReplies(RuntimeError):
    """Nodes answer with their models in the clear."""


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
    reports: list[tuple[Task, bytes, float]] = field(default_factory=list)
    """Accepted reports, in the order of the tasks: sums of floats depend on it."""
    opened: list[tuple[Task, Columns, float]] = field(default_factory=list)
    """The same reports after ``Scheme.open``."""
    accepted: list[int] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    clear: list[int] = field(default_factory=list)
    """Nodes that answered as an app without ``SqsgdMod`` does."""
    silent: list[int] = field(default_factory=list)
    """Nodes that sent nothing at all."""
    invalid: list[int] = field(default_factory=list)
    """Nodes that sent something other than a report or a refusal."""
    record: Record | None = None
    """What the server's step says about the round."""
    whole: int = 0
    """Number of nodes that were sent the whole model."""
    down: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Payload and serialised bytes of the message to each node, unless it could not be sent."""
    up: list[tuple[int, int]] = field(default_factory=list)
    """Payload and serialised bytes of each accepted report."""

    def asked(self, node: int, task: Task, message: Message) -> None:
        """Note a message before it is sent."""
        self.tasks[node] = task
        self.messages.append(message)
        content = message.content
        self.whole += wire.MODEL in content
        payload = sum(wire.payload_size(content[name]) for name in content if name != wire.CONFIG)
        self.down[node] = payload, wire.serialised_size(message)

    def answer(self, reply: Message) -> Answer:
        """A reply from Flower's own loop, which identifies the node by the reply's metadata.

        For a node that died, the SuperLink answers under its own identity.
        """
        node, asked = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        if node not in self.tasks and reply.has_error():
            sent = {message.metadata.message_id: message.metadata.dst_node_id for message in self.messages}
            node = sent.get(asked, node)
        return Answer(node=node, asked=asked, reply=reply)

    def name_slots(self) -> None:
        """Name slots instead of nodes in what is logged and written: which node had a slot is a secret.

        They are listed in the order of the slots, not of arrival; those that were not asked have none.
        """
        slots = {str(node): task.client for node, task in self.tasks.items()}
        named = [{"slot": slots.get(entry["node"]), "reason": entry["reason"]} for entry in self.rejected]
        self.rejected = sorted(named, key=lambda entry: (entry["slot"] is None, entry["slot"]))

    @property
    def totals(self) -> dict[str, int]:
        """Payload bytes of the whole round, answered or not; a mean times a count would be rounded."""
        return {
            "bytes_up_total": sum(payload for payload, _ in self.up),
            "bytes_down_total": sum(payload for payload, _ in self.down.values()),
        }

    @property
    def serialised_totals(self) -> dict[str, int]:
        """The same as Flower serialises them; for messages that name their nodes anyway."""
        return {
            "bytes_up_serialised_total": sum(size for _, size in self.up),
            "bytes_down_serialised_total": sum(size for _, size in self.down.values()),
        }

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

        One node cannot stop a training in this way, as long as another sends a report:
        tests/flower/test_clear_replies.py::test_one_node_without_the_mod_stops_nobody.
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


def sort_answers(last: Round, scheme: Scheme, replies: Iterable[Message | Answer]) -> None:
    """Fill in the round's accepted and rejected answers. No reply can raise, and none counts twice."""
    found: dict[int, tuple[bytes, Columns]] = {}
    for item in replies:
        answer = last.answer(item) if isinstance(item, Message) else item
        node = answer.node
        if not answer.sent:
            last.down.pop(node, None)
        try:
            if node not in last.tasks:
                raise MalformedReport("node", "was not asked")
            if node in found:
                raise MalformedReport("twice", "has answered this round already")
            reply = _checked(answer)
            payload = _payload(reply, scheme)
            columns = scheme.open(payload, last.tasks[node])
            size = wire.serialised_size(reply)
        except Exception as error:  # whatever a reply holds, the round continues
            known = isinstance(error, MalformedReport)
            reason = str(error) if known else f"unreadable ({type(error).__name__})"
            last.rejected.append({"node": str(node), "reason": reason})
            if node in last.tasks and answer.sent and reason not in REASONS:
                last.invalid.append(node)
            if node in last.tasks and (answer.clear or (known and error.args[0] == "clear")):
                last.clear.append(node)
            continue
        found[node] = payload, columns
        last.up.append((len(payload), size))
    for node, task in last.tasks.items():
        if node in found:
            payload, columns = found[node]
            last.accepted.append(node)
            last.reports.append((task, payload, 1.0))
            last.opened.append((task, columns, 1.0))
    late = "no answer in time" if last.timeout is None else f"no answer within {last.timeout:g} s"
    heard = {*found, *(int(entry["node"]) for entry in last.rejected)}
    last.silent = [node for node in last.tasks if node not in heard]
    last.rejected += [{"node": str(node), "reason": late} for node in last.silent]


def _mean(sizes: Sequence[int]) -> int:
    return round(sum(sizes) / len(sizes)) if sizes else 0


def _checked(answer: Answer) -> Message:
    """The reply, if it can be read and its metadata fit the answer. An error may be the SuperLink's."""
    reply = answer.reply
    if reply is None or not isinstance(reply, Message):
        raise MalformedReport("unreadable", answer.problem or f"unreadable ({type(reply).__name__})")
    about = reply.metadata
    if not reply.has_error() and (about.src_node_id, about.reply_to_message_id) != (
        answer.node,
        answer.asked,
    ):
        raise MalformedReport("name", "the reply is in another node's name, or to another message")
    return reply


def _payload(reply: Message, scheme: Scheme) -> bytes:
    """The payload of a reply, its size checked before anything else."""
    if reply.has_error():
        reason = reply.error.reason or ""
        known = reason if reason in REASONS else FLOWERS.get(reply.error.code, f"error {reply.error.code}")
        raise MalformedReport("error", known)
    if list(reply.content) != [wire.REPORT]:
        form = "clear" if reply.content and wire.REPORT not in reply.content else "records"
        raise MalformedReport(form, f"the reply has {len(reply.content)} records, not one report")
    record = reply.content[wire.REPORT]
    if not isinstance(record, ConfigRecord) or list(record) != [wire.PAYLOAD]:
        raise MalformedReport("records", "the report is not one payload")
    payload = record[wire.PAYLOAD]
    if not isinstance(payload, bytes):
        raise MalformedReport("type", f"the payload is {type(payload).__name__}, not bytes")
    if len(payload) != scheme.bits // 8:
        raise MalformedReport(
            "length", f"the report has {len(payload)} bytes; it must have {scheme.bits // 8}"
        )
    return payload
