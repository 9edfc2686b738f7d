"""What a node allows: decided by its owner, in the node's own configuration, and by nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.node.request import Request
from sqsgd.schemes import check_name

DEFAULT_SCHEMES = ("sqsgd", "sqsgd-stateless", "privunit-index")


class Refused(Exception):
    """The node does not answer; the text is for its owner's log and depends on no data."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one node allows.

    Guarantees
    ----------
    * No request gets a report of a larger ε, of another scheme, or of another notion than the owner allowed:
      tests/node/test_policy.py::test_what_the_owner_did_not_allow_is_refused.
    * ε is that of the scheme which the node itself makes, not the one that the request states:
      tests/node/test_policy.py::test_the_nodes_own_scheme_decides.
    """

    max_epsilon: float
    """The cap of the node's ledger, for its whole life."""
    max_report_epsilon: float
    schemes: tuple[str, ...]
    state_dir: Path | None

    @classmethod
    def of(cls, node_config: Mapping[str, object], *, simulation: bool) -> Policy:
        """The policy of a node's configuration; raises Refused where it is missing or wrong.

        A simulation protects nobody, and needs neither a cap nor a folder.
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
                    f"{key} is not set, so nothing is answered: start the node with --node-config "
                    "'state-dir=\"/an/absolute/path\" max-epsilon=...'"
                )
        folder = node_config.get("state-dir")
        if folder is not None and not (isinstance(folder, str) and Path(folder).is_absolute()):
            raise ValueError(f"state-dir = {folder!r} must be an absolute path")
        cap = checks.positive("max-epsilon", node_config.get("max-epsilon", 1e300))
        most = checks.positive("max-report-epsilon", node_config.get("max-report-epsilon", cap))
        listed = str(node_config.get("schemes", ",".join(DEFAULT_SCHEMES)))
        schemes = tuple(name.strip() for name in listed.split(",") if name.strip())
        for name in schemes:
            check_name("schemes", name)
        return cls(
            max_epsilon=cap,
            max_report_epsilon=min(most, cap),
            schemes=schemes,
            state_dir=None if folder is None else Path(folder),
        )

    def scheme(self, request: Request) -> Scheme:
        """The scheme of a request, made by the node itself; raises Refused where it is not allowed."""
        if request.scheme not in self.schemes:
            raise Refused(f"scheme = {request.scheme!r} is not among this node's {', '.join(self.schemes)}")
        if not request.epsilon <= self.max_report_epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} is above this node's max-report-epsilon = "
                f"{self.max_report_epsilon!r}"
            )
        try:
            scheme = request.make_scheme()
        except (ValueError, TypeError) as error:
            raise Refused(f"the scheme cannot be made: {error}") from None
        self.check(scheme, request)
        return scheme

    def check(self, scheme: Scheme, request: Request) -> None:
        """Raise Refused unless the scheme protects as much as was stated and is the one that was named."""
        privacy = scheme.privacy
        if privacy.notion != "local" or privacy.delta:
            raise Refused(
                f"scheme {scheme.name!r} with these options is private in the notion {privacy.notion!r} "
                f"with delta = {privacy.delta!r}; a node gives pure local reports only"
            )
        if not privacy.epsilon <= min(request.epsilon, self.max_report_epsilon):
            raise Refused(
                f"scheme {scheme.name!r} spends epsilon {privacy.epsilon!r}, more than the stated "
                f"{request.epsilon!r} or this node's max-report-epsilon = {self.max_report_epsilon!r}"
            )
        if scheme.fingerprint != request.fingerprint:
            raise Refused(
                f"the fingerprint {request.fingerprint:08x} is not that of the scheme as this node makes it "
                f"({scheme.fingerprint:08x}): server and node run different versions, or it was changed"
            )
