"""What a node allows, decided by its owner alone; what it tells the server instead of a report; its notes.

A server learns one of a few fixed sentences. The details stay in the owner's log and folder.
"""

import difflib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sqsgd._internal import checks
from sqsgd.core import Privacy, Scheme
from sqsgd.federation.node.request import TRAINING, MalformedRequest, NotAsked, Request
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, ReportRefused
from sqsgd.schemes import check_name
from sqsgd.training.settings import RECORD

DEFAULT_SCHEMES = ("sqsgd", "sqsgd-stateless", "privunit-index")  # a new scheme is not allowed on old nodes
PER_RECORD = "max-epsilon-per-record"
ANY_BYTES = 2**37
_MOST_DELTA = 0.1
KEYS = (
    "state-dir", "max-epsilon", "max-epsilon-per-report", "max-bytes", "min-batch", "schemes",
    "require-ledger", "witness", PER_RECORD, "delta", "evaluation-epsilon-per-record",
)  # fmt: skip


class Refused(Exception):
    """The node does not answer. The text is for the owner's log and does not depend on data."""


class RoundAnswered(ReportRefused):
    """The round, or a later one of the same training, was answered before."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one node allows.

    Guarantees
    ----------
    * No report has a larger ε, another scheme or another notion than the owner allows:
      tests/node/test_policy.py::test_what_the_owner_did_not_allow_is_refused.
    * No report has more bytes, or a smaller batch, than the owner allows:
      tests/node/test_policy.py::test_the_owner_decides_how_much_is_asked.
    * A misspelt limit is an error, and not ignored:
      tests/node/test_policy.py::test_a_misspelt_limit_answers_nothing.
    * ε comes from the scheme that the node itself makes, not from the request:
      tests/node/test_policy.py::test_the_nodes_own_scheme_decides.
    """

    max_epsilon: float
    """The cap of a new ledger, and of any other for as long as it is lower than the ledger's."""
    max_report_epsilon: float
    """Of one report; per record, where an ε is for a whole training, of one training."""
    schemes: tuple[str, ...]
    state_dir: Path | None
    max_bytes: int = ANY_BYTES
    min_batch: int = 1
    require_ledger: bool = False
    """True: a missing ledger stops the node; false: it is created, with a full budget."""
    witness: Path | None = None
    """The ledger's second tip, outside ``state_dir``."""
    delta: float | None = None
    """The cap is per record, at this δ; None: it is of pure epsilons."""
    evaluation_epsilon: float = 0.0
    """Of all evaluations per record together, a part of the cap; 0: none is answered."""

    @classmethod
    def of(cls, node_config: Mapping[str, object], *, simulation: bool) -> Self:
        """Return the policy in a node's configuration. Raises Refused if it is missing or invalid.

        A simulation protects nobody and needs neither a cap nor a folder.
        """
        try:
            if not simulation:
                _check_keys(node_config)
            folder, witness = (_path(key, node_config.get(key)) for key in ("state-dir", "witness"))
            if folder is not None and witness is not None and witness.is_relative_to(folder):
                raise ValueError(f"witness = '{witness}' is in state-dir: name a file on another disk")
            require = node_config.get("require-ledger", False)
            if not isinstance(require, bool):
                raise ValueError(f"require-ledger = {require!r} must be true or false")
            per_record, limit = PER_RECORD in node_config, "max-epsilon-per-report"
            key = PER_RECORD if per_record else "max-epsilon"
            cap = checks.positive(key, node_config.get(key, 1e300))
            delta = _MOST_DELTA if simulation or per_record else None
            if delta is not None:
                delta = checks.real("delta", node_config.get("delta", delta), 1e-30, _MOST_DELTA)
            known = (*(() if per_record else DEFAULT_SCHEMES), *(() if delta is None else [RECORD]))
            evaluation = node_config.get("evaluation-epsilon-per-record", cap if simulation else 0.0)
            listed = str(node_config.get("schemes", ",".join(known)))
            schemes = tuple(name.strip() for name in listed.split(",") if name.strip())
            for name in schemes:
                check_name("schemes", name)
            return cls(
                max_epsilon=cap,
                max_report_epsilon=min(checks.positive(limit, node_config.get(limit, cap)), cap),
                max_bytes=checks.integer("max-bytes", node_config.get("max-bytes", ANY_BYTES), 1, ANY_BYTES),
                min_batch=checks.integer("min-batch", node_config.get("min-batch", 1), 1, 2**31),
                schemes=schemes,
                state_dir=folder,
                require_ledger=require,
                witness=witness,
                delta=delta,
                evaluation_epsilon=checks.real("evaluation-epsilon-per-record", evaluation, 0.0, cap),
            )
        except ValueError as error:
            raise Refused(f"this node's configuration: {error}") from None

    def scheme(self, request: Request) -> Scheme:
        """Return the scheme of a request, made by the node itself. Raises Refused if it is not allowed."""
        if request.scheme not in self.schemes:
            raise Refused(
                f"scheme = {request.scheme!r} is not among this node's schemes: {', '.join(self.schemes)}"
            )
        if not request.epsilon <= self.max_report_epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} is above this node's max-epsilon-per-report = "
                f"{self.max_report_epsilon!r}"
            )
        if request.bytes > self.max_bytes:
            raise Refused(f"bytes = {request.bytes} is above this node's max-bytes = {self.max_bytes}")
        try:
            scheme = request.make_scheme()
        except (ValueError, TypeError) as error:
            raise Refused(f"the scheme cannot be made: {error}") from None
        self.check(scheme, request)
        return scheme

    def check_batch(self, batch: int | None) -> None:
        if batch is not None and batch < self.min_batch and self.min_batch > 1:
            raise Refused(f"batch = {batch} is below this node's min-batch = {self.min_batch}")

    def check(self, scheme: Scheme, request: Request) -> None:
        """Raise Refused unless the scheme is the one stated and spends no more than stated."""
        privacy = scheme.privacy
        if privacy.notion == "record":
            self._check_record(privacy, request)
        elif not privacy.is_pure_local or request.purpose != TRAINING:
            found = f"its notion is {privacy.notion!r}, with delta = {privacy.delta!r}"
            raise Refused(f"scheme {scheme.name!r} is neither pure local nor per record: {found}")
        if privacy.arithmetic != "exact":
            raise Refused(f"the guarantee of scheme {scheme.name!r} holds in real arithmetic only")
        if not privacy.epsilon <= (most := min(request.epsilon, self.max_report_epsilon)):
            spends = f"scheme {scheme.name!r} spends epsilon {privacy.epsilon!r}"
            raise Refused(f"{spends}, more than the stated or allowed {most!r}")
        if scheme.fingerprint != request.fingerprint:
            other = f"the fingerprint {request.fingerprint:08x} is not {scheme.fingerprint:08x}"
            raise Refused(f"{other}: server and node run different versions, or it was changed")

    def _check_record(self, privacy: Privacy, request: Request) -> None:
        if self.delta is None:
            raise Refused(f"the owner of this node has set no cap per record: {PER_RECORD} and delta")
        if privacy.delta > self.delta:
            raise Refused(f"delta = {privacy.delta!r} is above this node's delta = {self.delta!r}")
        if request.purpose == TRAINING:
            if request.task.round >= privacy.reports:  # the owner's limit of a training is about so many
                told = f"epsilon = {request.epsilon!r} is of {privacy.reports} rounds"
                raise Refused(f"round {request.task.round} is one too many: {told}")
            return
        if privacy.share != 1 or request.task.dim != 1:  # all records are counted, and paid for
            raise Refused("an evaluation is one number, about all records")
        if not privacy.epsilon <= self.evaluation_epsilon:
            raise Refused(
                f"an evaluation at epsilon = {privacy.epsilon!r} is above this node's "
                f"evaluation-epsilon-per-record = {self.evaluation_epsilon!r}"
            )


def _check_keys(node_config: Mapping[str, object]) -> None:
    """Raise ValueError if a needed key is missing, or one is almost one of the owner's; others are apps'."""
    per_record = PER_RECORD in node_config
    for key in ("state-dir", "delta") if per_record else ("state-dir", "max-epsilon"):
        if key not in node_config:
            raise ValueError(
                f"{key} is not set, so this node answers nothing: start it with --node-config "
                f"'state-dir=\"/an/absolute/path\" max-epsilon=...', or with {PER_RECORD}=... and delta=..."
            )
    own = ("max-epsilon",) if per_record else ("delta", "evaluation-epsilon-per-record")
    if wrong := [key for key in own if key in node_config]:
        raise ValueError(f"{wrong[0]} and {PER_RECORD}: a ledger has one cap, per record with delta or not")
    for key in node_config:
        if key not in KEYS and (meant := _meant(key)):
            raise ValueError(f"{key} is unknown; did you mean {meant}?")


def _meant(key: str) -> str:
    """The owner's key that another resembles: misspelt, with its words in another order, or with one more."""
    words = key.lower().replace("_", "-").split("-")
    for order in (list, sorted):
        spelt = {"".join(order(known.split("-"))): known for known in KEYS}
        if close := difflib.get_close_matches("".join(order(words)), spelt, 1, 0.8):
            return spelt[close[0]]
    longer = [known for known in KEYS if "-" in known and set(known.split("-")) <= set(words)]
    return longer[0] if longer else ""


def _path(key: str, value: object) -> Path | None:
    if value is not None and not (isinstance(value, str) and Path(value).is_absolute()):
        raise ValueError(f"{key} = {value!r} must be an absolute path")
    return None if value is None else Path(value)


# ---------------------------------------------------------------- sentences for the server

FAILED = "the node failed; its own log says why"
NOT_ALLOWED = "the node refused: its owner does not allow this"
MALFORMED = "the node refused: the request is malformed"
NOT_ASKED = (
    "the node sends private reports only, and the server does not ask for one: "
    "it needs SqsgdStrategy (in NVFlare SqsgdAggregator)"
)
ANSWERED = "the node refused: the round was answered before"
SPENT = "the node refused: its privacy budget is spent"
LEDGER = "the node refused: its ledger does not allow it"
REASONS = (FAILED, NOT_ALLOWED, MALFORMED, NOT_ASKED, ANSWERED, SPENT, LEDGER)
"""All that a node ever says in place of a report: none depends on data."""
UNPAID = (NOT_ALLOWED, MALFORMED, NOT_ASKED, SPENT, LEDGER)  # after these nothing was spent on the round
_REASONS_OF: tuple[tuple[type[BaseException], str], ...] = (
    (NotAsked, NOT_ASKED),
    (MalformedRequest, MALFORMED),
    (RoundAnswered, ANSWERED),
    (AlreadyAnswered, ANSWERED),
    (BudgetSpent, SPENT),
    (ReportRefused, LEDGER),
    (Refused, NOT_ALLOWED),
)


def explain(
    error: BaseException, asked: Mapping[str, object], node_config: Mapping[str, object], log: logging.Logger
) -> str:
    """The reason for the server; details of the request as it arrived go to the owner's log and folder."""
    reason = next((reason for kind, reason in _REASONS_OF if isinstance(error, kind)), FAILED)
    if reason == FAILED:  # the text may hold data: it stays here
        log.error("sqsgd: the round failed at this node; the server learns nothing else", exc_info=error)
        return reason
    log.warning("sqsgd: refused: %s", shortened(str(error)))
    about = {"task": asked.get("name"), "round": asked.get("round"), "reason": str(error), "told": reason}
    folder = node_config.get("state-dir")
    if isinstance(folder, str) and Path(folder).is_absolute():
        try:
            note(Path(folder), "refusals", about)
        except (OSError, TypeError, ValueError):
            log.exception("sqsgd: the refusal could not be written to %s", folder)
    return reason


# ---------------------------------------------------------------- the owner's notes

MAX_BYTES = 4 * 1024 * 1024  # beyond it refusals and repeats, which cost a server nothing, are not noted
_MAX_TEXT = 500


def note(folder: Path, kind: str, entry: Mapping[str, object]) -> None:
    """Append a line to ``answers.jsonl`` or ``refusals.jsonl``, on disk on return.

    The last line before the file is full marks its end. Answers that were paid for are always noted.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{kind}.jsonl"
    free = kind == "refusals" or bool(entry.get("again"))
    size = path.stat().st_size if path.exists() else 0
    if free and size >= MAX_BYTES:
        return
    shown: dict[str, object] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    shown |= {key: shortened(value) for key, value in entry.items()}
    line = json.dumps(shown)
    if free and size + len(line) + 1 >= MAX_BYTES:
        last = {"full": f"the file has {MAX_BYTES} bytes: further refusals and repeats are not noted"}
        line = json.dumps(shown | last).ljust(MAX_BYTES - size - 1)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shortened(value: object) -> object:
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return value
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
