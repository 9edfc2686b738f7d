"""What a node allows, decided by its owner alone in the node's own configuration."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.node.request import Request
from sqsgd.schemes import check_name

DEFAULT_SCHEMES = ("sqsgd", "sqsgd-stateless", "privunit-index")
"""What a node answers with unless its owner lists others. This is the owner's choice, not a property of the
schemes: adding a scheme to the table must not allow it on existing nodes."""

_KEYS = (
    "state-dir", "max-epsilon", "max-epsilon-per-report", "max-report-epsilon", "max-bytes", "min-batch",
    "evaluate-epsilon", "schemes", "require-ledger", "witness", "wrap-apps", "warm-process",
)  # fmt: skip


class Refused(Exception):
    """The node does not answer. The text is for the owner's log and does not depend on data."""


class Misfit(Refused):
    """What the app returns does not fit the model. Refused if a dry run, which sees no data, shows it."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one node allows.

    Guarantees
    ----------
    * No request gets a report with a larger ε, another scheme or another notion than the owner allows:
      tests/node/test_policy.py::test_what_the_owner_did_not_allow_is_refused.
    * No request gets a report of more bytes, or of a smaller batch, than the owner allows:
      tests/node/test_policy.py::test_the_owner_decides_how_much_is_asked.
    * No number of an evaluation leaves unless the owner allows it, and with no larger ε:
      tests/node/test_evaluation.py::test_what_the_owner_did_not_allow_is_refused.
    * A misspelt limit is refused, and not left out:
      tests/node/test_policy.py::test_a_misspelt_limit_answers_nothing.
    * ε is that of the scheme that the node itself makes, not the one that the request states:
      tests/node/test_policy.py::test_the_nodes_own_scheme_decides.
    """

    max_epsilon: float
    """The lifetime cap of the node's ledger."""
    max_report_epsilon: float
    """The most that one report may spend, ``max-epsilon-per-report``."""
    schemes: tuple[str, ...]
    state_dir: Path | None
    max_bytes: int | None = None
    """The most bytes of codes in one report; None: any number."""
    min_batch: int = 1
    """The smallest batch that a server may ask an app for."""
    require_ledger: bool = False
    """Whether a missing ledger is refused rather than created, with a full budget."""
    evaluate_epsilon: float | None = None
    """The most that one evaluation may spend, ``evaluate-epsilon``; None: none is answered."""
    witness: Path | None = None
    """The ledger's second tip, outside ``state_dir``."""

    @classmethod
    def of(cls, node_config: Mapping[str, object], *, simulation: bool) -> Policy:
        """The policy in a node's configuration; raises Refused if it is missing or invalid.

        A simulation protects nobody and needs neither a cap nor a folder.
        """
        try:
            return cls._read(node_config, simulation)
        except ValueError as error:
            raise Refused(f"this node's configuration: {error}") from None

    @classmethod
    def _read(cls, node_config: Mapping[str, object], simulation: bool) -> Policy:
        for key in ("state-dir", "max-epsilon"):
            if key not in node_config and not simulation:
                raise ValueError(
                    f"{key} is not set, so this node answers nothing: start it with --node-config "
                    "'state-dir=\"/an/absolute/path\" max-epsilon=...'"
                )
        for key in node_config if not simulation else ():
            _check_spelling(key)
        folder, witness = (_path(key, node_config.get(key)) for key in ("state-dir", "witness"))
        if folder is not None and witness is not None and witness.is_relative_to(folder):
            raise ValueError(f"witness = '{witness}' is in state-dir: name a file on another disk")
        require = node_config.get("require-ledger", False)
        if not isinstance(require, bool):
            raise ValueError(f"require-ledger = {require!r} must be true or false")
        cap = checks.positive("max-epsilon", node_config.get("max-epsilon", 1e300))
        # The second is the name that earlier versions gave it.
        limits = ("max-epsilon-per-report", "max-report-epsilon")
        most = min(checks.positive(key, node_config.get(key, cap)) for key in limits)
        max_bytes, min_batch = node_config.get("max-bytes"), node_config.get("min-batch", 1)
        # A simulation protects nobody: it answers evaluations as it answers everything else.
        evaluate = node_config.get("evaluate-epsilon", cap if simulation else None)
        listed = str(node_config.get("schemes", ",".join(DEFAULT_SCHEMES)))
        schemes = tuple(name.strip() for name in listed.split(",") if name.strip())
        for name in schemes:
            check_name("schemes", name)
        return cls(
            max_epsilon=cap,
            max_report_epsilon=min(most, cap),
            max_bytes=None if max_bytes is None else checks.integer("max-bytes", max_bytes, 1, 2**37),
            min_batch=checks.integer("min-batch", min_batch, 1, 2**31),
            evaluate_epsilon=None if evaluate is None else checks.positive("evaluate-epsilon", evaluate),
            schemes=schemes,
            state_dir=folder,
            require_ledger=require,
            witness=witness,
        )

    def scheme(self, request: Request) -> Scheme:
        """The scheme of a request, made by the node itself; raises Refused if it is not allowed."""
        if request.scheme not in self.schemes:
            raise Refused(
                f"scheme = {request.scheme!r} is not among this node's schemes: {', '.join(self.schemes)}"
            )
        if not request.epsilon <= self.max_report_epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} is above this node's max-epsilon-per-report = "
                f"{self.max_report_epsilon!r}"
            )
        if self.max_bytes is not None and request.bits > 8 * self.max_bytes:
            raise Refused(f"bytes = {request.bits / 8:g} is above this node's max-bytes = {self.max_bytes}")
        try:
            scheme = request.make_scheme()
        except (ValueError, TypeError) as error:
            raise Refused(f"the scheme cannot be made: {error}") from None
        self.check(scheme, request)
        return scheme

    def check_batch(self, batch: int | None) -> None:
        """Raise Refused if the batch that the app is asked for, where it is named, is too small."""
        if batch is not None and batch < self.min_batch and self.min_batch > 1:
            raise Refused(
                f"batch = {batch} is below this node's min-batch = {self.min_batch}: the fewer examples are "
                "in a batch, the more a report tells about each"
            )

    def check(self, scheme: Scheme, request: Request) -> None:
        """Raise Refused unless the scheme is the one stated and spends no more than stated."""
        privacy = scheme.privacy
        if not privacy.is_pure_local:
            raise Refused(
                f"scheme {scheme.name!r} with these options has the privacy notion {privacy.notion!r} "
                f"and delta = {privacy.delta!r}; a node sends pure local reports only"
            )
        if privacy.arithmetic != "exact":
            raise Refused(
                f"the guarantee of scheme {scheme.name!r} holds in real arithmetic only; nodes send reports "
                "of exact schemes"
            )
        if not privacy.epsilon <= min(request.epsilon, self.max_report_epsilon):
            raise Refused(
                f"scheme {scheme.name!r} spends epsilon {privacy.epsilon!r}, more than the stated "
                f"{request.epsilon!r} or this node's max-epsilon-per-report = {self.max_report_epsilon!r}"
            )
        if scheme.fingerprint != request.fingerprint:
            raise Refused(
                f"the fingerprint {request.fingerprint:08x} differs from that of this node's scheme "
                f"({scheme.fingerprint:08x}): server and node run different versions, or it was changed"
            )


def _check_spelling(key: str) -> None:
    """Raise ValueError if a key is almost one of the owner's; others are the app's."""
    close = difflib.get_close_matches(key.lower().replace("_", "-"), _KEYS, 1, 0.85)
    if close and key not in _KEYS:
        raise ValueError(f"{key} is unknown; did you mean {close[0]}?")


def _path(key: str, value: object) -> Path | None:
    if value is not None and not (isinstance(value, str) and Path(value).is_absolute()):
        raise ValueError(f"{key} = {value!r} must be an absolute path")
    return None if value is None else Path(value)
