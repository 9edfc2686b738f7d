"""A device of a study in Python: it pays before it encodes, sends one report, and trusts no server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.files import prepared, put
from sqsgd.core import Scheme
from sqsgd.core.random import secure_rng
from sqsgd.core.task import Task
from sqsgd.privacy.ledger import Ledger, ReportRefused
from sqsgd.schemes import make_scheme

Transport = Callable[[str, bytes | None, Mapping[str, str]], bytes]
"""Sends a body (None: GET) with headers to an address; returns the answer or raises ``ServiceRefused``."""
TERMS = ("scheme", "dim", "asked_epsilon", "bytes", "options", "fingerprint")
"""The fields of ``/study`` that decide how much a report reveals; a device refuses changes of them."""
_MOST_DIM, _MOST_TEXT = 1 << 24, 1 << 20


class StudyRefused(ReportRefused):
    """The study asks for something that this device does not do. Nothing was sent or paid."""


class ServiceRefused(Exception):
    """The service did not accept a request; ``status`` is HTTP's, or 0 if there was no answer."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"the service answered {status}: {reason}" if status else reason)


class Device:
    """Takes part in studies, at most once in each, within one budget for all of them.

    Guarantees
    ----------
    * The ledger pays for a scheme before that scheme encodes, even if a server changes its answers between
      visits: tests/collect/test_device.py.
    * A server learns nothing from an app that fails, because the device then reports zeros; a report is on
      the disk before it is sent, and a repeated visit sends the same bytes: tests/collect/test_device.py.

    If a crash falls between payment and storage, the payment is lost and the device does not report.
    """

    def __init__(
        self, folder: Path | str, *, max_epsilon: float | None = None, transport: Transport | None = None
    ) -> None:
        """Open a device's folder, or make one.

        Args:
            folder: Holds the ledger, for good, and the reports that are under way.
            max_epsilon: The budget for all studies together; needed for a new folder, and fixed by it.
            transport: How requests are sent; the standard library's HTTP client if not given.

        Raises:
            ValueError: A new folder without ``max_epsilon``, or another budget than the folder's.
            LedgerDamaged: The amount spent is not known for certain.
        """
        self.folder = Path(folder)
        self._transport = transport or _http
        path, self._reports = self.folder / "ledger", self.folder / "reports.json"
        if path.exists():
            self.ledger = Ledger(path)
            budget = self.ledger.max_epsilon
            if max_epsilon not in (None, budget):
                raise ValueError(f"max_epsilon = {max_epsilon!r}: the budget of {self.folder} is {budget!r}")
        elif max_epsilon is None:
            raise ValueError(f"max_epsilon is missing: {self.folder} has no ledger yet")
        else:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.ledger = Ledger.create(path, max_epsilon=max_epsilon)

    def report(
        self,
        url: str,
        gradient: Callable[[Vector], npt.ArrayLike],
        *,
        invitation: str | None = None,
        max_epsilon: float | None = None,
    ) -> dict[str, Any]:
        """Report to the study at an address, or send the same report again if its fate is unknown.

        Args:
            url: The address of the study, https unless it is on this machine.
            gradient: The app's function of the model's weights.
            invitation: As the operator sent it; None if the study is open.
            max_epsilon: The most that this report may cost; None: what the budget has left.

        Returns:
            The service's answer.

        Raises:
            StudyRefused: The study changed, or asks for something that a device never does.
            ReportRefused: The ledger refuses: the budget is spent, or the study was answered before.
            ServiceRefused: The service is away or refuses; the next visit goes on from here.
        """
        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"url = {url!r} must begin with https://")
        study = self._json(f"{url}/study")
        terms = {name: study.get(name) for name in TERMS}
        scheme = _scheme(terms)
        if max_epsilon is not None and scheme.privacy.epsilon > max_epsilon:
            raise StudyRefused(f"a report costs epsilon {scheme.privacy.epsilon!r}, above {max_epsilon!r}")
        name = study.get("study")
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
            raise StudyRefused("the study has no name")
        everything = json.loads(self._reports.read_text()) if self._reports.exists() else {}
        kept = everything.setdefault(name, {"terms": terms, "ticket": secrets.token_hex(32)})
        if kept["terms"] != terms:
            changed = ", ".join(key for key in TERMS if kept["terms"].get(key) != terms[key])
            raise StudyRefused(f"the study changed since this device first saw it: {changed}")
        if "message" not in kept:
            self._keep(everything)  # a join that is repeated gets the same slot
            task, weights = self._joined(url, name, kept["ticket"], invitation, scheme)
            x = _answer(gradient, weights)
            # Round 0 for any round that the server named: the ledger refuses a second report for this study.
            self.ledger.spend_for(scheme, replace(task, round=0), name=name)
            kept["message"] = scheme.encode(x, task, secure_rng()).hex()
            self._keep(everything)
        message, ticket = bytes.fromhex(kept["message"]), kept["ticket"]
        return self._json(f"{url}/report", message, Authorization=f"Bearer {ticket}")

    def _joined(
        self, url: str, study: str, ticket: str, invitation: str | None, scheme: Scheme
    ) -> tuple[Task, Vector]:
        asked = {"study": study, "ticket": ticket, **({"invitation": invitation} if invitation else {})}
        joined = self._json(f"{url}/join", json.dumps(asked).encode())
        model = joined.get("model")
        try:
            task = Task(**joined["task"])
            scheme.check_clip(task.clip)
        except (KeyError, TypeError, ValueError) as error:
            raise StudyRefused(f"the slot is invalid: {error}") from None
        if task.dim != scheme.dim or not isinstance(model, str) or not model.startswith("/"):
            raise StudyRefused("the slot is for another model")
        weights = np.frombuffer(self._transport(url + model, None, {}), np.uint8)
        if weights.size != 4 * scheme.dim:
            raise StudyRefused(f"the model has {weights.size} bytes instead of {4 * scheme.dim}")
        try:
            return task, checks.vector("weights", weights.view("<f4"), scheme.dim)
        except ValueError as error:
            raise StudyRefused(f"the model is invalid: {error}") from None

    def _json(self, url: str, body: bytes | None = None, **headers: str) -> dict[str, Any]:
        try:
            found = json.loads(self._transport(url, body, headers))
        except (ValueError, RecursionError):
            raise ServiceRefused(0, f"the answer of {url} is not JSON") from None
        if not isinstance(found, dict):
            raise ServiceRefused(0, f"the answer of {url} is not a JSON object")
        return found

    def _keep(self, everything: dict[str, Any]) -> None:
        """On the disk when it returns, and readable by this user alone."""
        put(prepared(self._reports, json.dumps(everything).encode(), 0o600), self._reports)


def _scheme(terms: Mapping[str, Any]) -> Scheme:
    try:
        checks.integer("dim", terms["dim"], 1, _MOST_DIM)
        if not isinstance(terms["options"], dict):
            raise ValueError("options must be an object")
        scheme = make_scheme(
            terms["scheme"], dim=terms["dim"], epsilon=terms["asked_epsilon"], bytes=terms["bytes"],
            **terms["options"],
        )  # fmt: skip
    except (TypeError, ValueError, MemoryError) as error:
        raise StudyRefused(f"the study is invalid: {error}") from None
    if not scheme.privacy.is_pure_local or scheme.privacy.arithmetic != "exact":
        raise StudyRefused(f"the scheme {scheme.name!r} has no exact local epsilon")
    if f"{scheme.fingerprint:08x}" != terms["fingerprint"]:
        raise StudyRefused("the study's fingerprint belongs to another scheme")
    return scheme


def _answer(gradient: Callable[[Vector], npt.ArrayLike], weights: Vector) -> Vector:
    """The app's gradient, or zeros where it fails: whether it fails depends on the user's data."""
    try:
        return checks.vector("gradient", gradient(weights.copy()), weights.size)
    except Exception:
        return np.zeros(weights.size, np.float32)


def _http(url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    """One request; redirections are not followed."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    try:
        with build_opener(Stay).open(Request(url, body, dict(headers)), timeout=60) as answer:  # noqa: S310
            return bytes(answer.read(4 * _MOST_DIM + _MOST_TEXT))
    except HTTPError as error:
        raise ServiceRefused(error.code, error.read(500).decode(errors="replace")) from None
    except (URLError, HTTPException, OSError) as error:
        raise ServiceRefused(0, f"{url} does not answer: {error}") from None
