"""Why the service refuses a request, and what the device should do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_KINDS: dict[str, tuple[int, str]] = {
    # What the device should do ends each answer; it never asks for a second report of the same user.
    "bad-request": (400, "send what /openapi.json describes"),
    "malformed": (
        400,
        "do not encode again, which would be a second report of the same data; check the encoder",
    ),
    "invitation-invalid": (403, "ask the operator for an invitation to this study"),
    "invitation-used": (
        409,
        "repeat the request with the ticket of the first attempt, or ask for an invitation",
    ),
    "wrong-study": (404, "read /study, and ask its owner before taking part in another study"),
    "not-found": (404, "see /openapi.json"),
    "unknown-ticket": (404, "do not report again: the slot went to another device, or was never yours"),
    "slot-taken": (409, "nothing: the report that came first counts"),
    "round-over": (410, "nothing: this report comes too late, and a second one is not wanted"),
    "closed": (410, "nothing: the study has ended"),
    "wrong-method": (405, "send what /openapi.json describes"),
    "too-slow": (408, "repeat the same request over a better connection"),
    "too-long": (413, "send what /openapi.json describes"),
    "too-many": (429, "repeat the same request later"),
    "internal": (500, "repeat the same request later"),
    "no-slot": (503, "repeat the same request later"),
    "busy": (503, "repeat the same request later"),
    "storage": (503, "repeat the same request later; nothing was counted that was not confirmed"),
}
CODES = tuple(_KINDS)


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """An answer that is not what the device hoped for."""

    code: str
    reason: str
    seconds: float = 0.0
    """When to try again, if that helps."""

    @property
    def status(self) -> int:
        """The status of the HTTP response."""
        return _KINDS[self.code][0]

    def to_dict(self) -> dict[str, Any]:
        """The body of the response."""
        return {"error": self.code, "reason": self.reason, "what_to_do": _KINDS[self.code][1]}

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After``, where it helps."""
        return {"retry-after": str(max(1, round(self.seconds)))} if self.status in (429, 503) else {}
