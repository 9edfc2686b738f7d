"""A device of a study in Python: it draws its rounds, pays before it encodes, and trusts no server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.files import prepared, put
from sqsgd.core import Scheme
from sqsgd.core.random import secure_rng
from sqsgd.core.task import Task
from sqsgd.federation.collect.tokens import ANSWER_BYTES, TokenKey, base64url, challenge, read_base64url
from sqsgd.privacy.ledger import Ledger, ReportRefused
from sqsgd.schemes import make_scheme

Gradient = Callable[[Vector], npt.ArrayLike]
Transport = Callable[[str, bytes | None, Mapping[str, str]], bytes]
"""Sends a body (None: GET) with headers to an address; returns the answer or raises ``ServiceRefused``."""
_MOST_DIM, _MOST_TEXT = 1 << 24, 1 << 20
MOST_SEED = 2**53 - 1  # numbers in JavaScript are exact up to here
_LIMITS = {
    "dim": (1, _MOST_DIM), "rounds": (1, 10**6), "reports": (1, 1000), "begins": (0, 2**40),
    "seed": (0, MOST_SEED), "request_bytes": (1024, _MOST_TEXT),
}  # fmt: skip
_SPREAD = 0.9  # of a round; the rest is left for retries
_UNIT = 1 << 53


class StudyRefused(ReportRefused):
    """The study asks for something that this device does not do. Nothing was sent or paid."""


class ServiceRefused(Exception):
    """The service did not accept a request; ``status`` is HTTP's, or 0 if there was no answer."""

    def __init__(self, status: int, reason: str, code: str = "") -> None:
        self.status, self.code = status, code
        super().__init__(f"the service answered {status}: {reason}" if status else reason)


def check_terms(known: Mapping[str, Any]) -> None:
    """What is wrong with the terms of a study, apart from its scheme and keys, as a ValueError."""
    for name, (least, most) in _LIMITS.items():
        checks.integer(name, known.get(name), least, most)
    checks.real("round_seconds", known["round_seconds"], 0.1, 1e9)
    if known["visits"] not in ("drawn", "once"):
        raise ValueError(f"visits = {known['visits']!r} must be drawn or once")
    if known["relay"] is not None:
        check_address("relay", known["relay"])


def check_scheme(scheme: Scheme) -> Scheme:
    """Return the scheme, if studies can use it. Raises ValueError otherwise."""
    if not scheme.privacy.is_pure_local or scheme.privacy.arithmetic != "exact" or not scheme.symbols:
        lacks = "a study needs a pure local guarantee in exact arithmetic, and reports that can be counted"
        raise ValueError(f"scheme = {scheme.name!r}: {lacks}, the same for all devices of a round")
    return scheme


def check_address(name: str, url: object) -> None:
    """https, unless it is on this machine."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or (parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost")):
        raise ValueError(f"{name} = {url!r} must begin with https://")


@dataclass(frozen=True)
class Terms:
    """The study as this device first read it: bytes whose digest is the study's id.

    Raises:
        StudyRefused: It is not one that this device takes part in.
    """

    description: bytes

    def __post_init__(self) -> None:
        try:
            if self.known["format"] != 1:
                raise ValueError("it is not in format 1")
            check_terms(self.known)
            self.key, self.signer, self.scheme, self.task(0)  # they are made now, or refused
        except (KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
            raise StudyRefused(f"the study is invalid: {error}") from None

    @cached_property
    def known(self) -> dict[str, Any]:
        return dict(json.loads(self.description))

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(self.description).hexdigest()

    @cached_property
    def key(self) -> TokenKey:
        return TokenKey(read_base64url("token_key", self.known["token_key"]))

    @cached_property
    def signer(self) -> Ed25519PublicKey:
        """Whoever signs the gateway's keys."""
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.known["gateway_key"]))

    @cached_property
    def scheme(self) -> Scheme:
        known = self.known
        asked = {"dim": known["dim"], "epsilon": known["asked_epsilon"], "bytes": known["bytes"]}
        scheme = check_scheme(make_scheme(known["scheme"], **asked, **known["options"]))
        if f"{scheme.fingerprint:08x}" != known["fingerprint"]:
            raise ValueError("the fingerprint belongs to another scheme")
        return scheme

    def task(self, round: int) -> Task:
        known = self.known
        return Task(round=round, client=0, **{name: known[name] for name in ("seed", "dim", "bound")})

    def at(self, place: float) -> float:
        """Return the time of a place in the schedule, where 2.5 is the middle of round 2."""
        return float(self.known["begins"] + place * self.known["round_seconds"])

    def input(self, nonce: bytes) -> bytes:
        return self.key.input(challenge(self.id), nonce)


class Device:
    """A device that takes part in studies, with one privacy budget for all of them.

    Guarantees
    ----------
    * The ledger pays for a scheme before that scheme encodes, and no answer of a server changes scheme, task
      or epsilon after the first visit: tests/collect/test_device.py.
    * A device reports in rounds that it drew once, uniformly:
      tests/collect/test_device.py::test_rounds_are_drawn_once_and_uniformly.
    * A server learns nothing from an app that fails, because the device then reports zeros; a report is on
      the disk before it is sent, and a repeated visit sends the same bytes: tests/collect/test_device.py.

    If a crash falls between payment and storage, the payment is lost and the device does not report.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        max_epsilon: float | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a device's folder, or make one.

        Args:
            folder: Holds the ledger, for good, and the reports that are under way.
            max_epsilon: The budget for all studies together; needed for a new folder, and fixed by it.
            transport: How requests are sent; the standard library's HTTP client if not given.
            clock: Seconds since 1970.

        Raises:
            ValueError: A new folder without ``max_epsilon``, or another budget than the folder's.
            LedgerDamaged: The amount spent is not known for certain.
        """
        self.folder = Path(folder)
        self._transport, self._clock = transport or _http, clock
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
        gradient: Gradient,
        *,
        invitation: str | None = None,
        study: str | None = None,
        max_epsilon: float | None = None,
    ) -> dict[str, Any]:
        """Visit a study. Joins the study on the first visit, and sends each report that is due.

        Call it again after ``seconds``. If an answer is lost, the same bytes are sent again.

        Args:
            url: The address of the study, https unless it is on this machine.
            gradient: The app's function of the model's weights.
            invitation: The invitation from the operator, or None for an open study.
            study: The study's id, if the app knows it; None: that in the invitation, if there is one.
            max_epsilon: The largest total cost of all reports to this study; None: the remaining budget.

        Returns:
            ``study``; how many reports are ``accepted``, ``waiting`` and ``missed``; ``seconds`` until the
            next visit (None: nothing is left to do).

        Raises:
            StudyRefused: If the study has changed, or requests something that a device never does.
            ReportRefused: If the budget is spent, or the report was paid for before.
            ServiceRefused: If the service is unavailable or refuses; try again later.
        """
        check_address("url", url)
        everything = json.loads(self._reports.read_text()) if self._reports.exists() else {}
        kept, named = everything.get(url), study or _named(invitation)
        terms = None if kept is None else Terms(kept["study"].encode())
        if new := terms is None or named not in (None, terms.id):
            terms = Terms(self._transport(f"{url}/study", None, {}))
            if named not in (None, terms.id):
                raise StudyRefused(f"this is study {terms.id}, not the one that was named")
            if kept is not None and any(each["state"] == "waiting" for each in kept["reports"]):
                raise StudyRefused(f"{url} has another study, and the reports to the first are not finished")
        cost = terms.known["reports"] * terms.scheme.privacy.epsilon
        if max_epsilon is not None and cost > max_epsilon:
            raise StudyRefused(f"the study costs epsilon {cost!r}, above {max_epsilon!r}")
        if new or kept is None:
            kept = everything[url] = _drawn(terms)
            self._keep(everything)  # before any request that depends on it
        visit, reports = _Visit(url, terms, self._transport, self._clock()), kept["reports"]
        if "nonce" in reports[0]:
            visit.join(reports, invitation)
            self._keep(everything)
        for number, each in enumerate(reports):
            if each["state"] == "waiting" and self._clock() >= each.get("due", 0.0):
                if "body" not in each:
                    visit.make(each, partial(self._pay, terms, number), gradient)
                    self._keep(everything)  # before it is sent
                if "body" in each:
                    each["state"] = visit.send(each["body"])
                if each["state"] != "waiting":  # nothing tells afterwards which report was this device's
                    for name in each.keys() - {"state", "epsilon"}:
                        del each[name]
                    self._keep(everything)
        return _summary(terms, reports, self._clock())

    def _pay(self, terms: Terms, number: int, task: Task) -> None:
        """A report's place in the study is paid for once, whatever a server says about rounds."""
        self.ledger.spend_for(terms.scheme, replace(task, round=number), name=terms.id)

    def _keep(self, everything: dict[str, Any]) -> None:
        """On the disk when it returns, and readable by this user alone."""
        put(prepared(self._reports, json.dumps(everything).encode()), self._reports)


class _Visit:
    """Requests of one visit: through the study's relay if it has one, so that the service sees no address."""

    def __init__(self, url: str, terms: Terms, transport: Transport, now: float) -> None:
        self._url, self._terms, self._transport, self._now = url, terms, transport, now
        self._keys = b""

    def join(self, reports: list[dict[str, Any]], invitation: str | None) -> None:
        """Tokens for all reports: blinded, signed, verified. A repeated request has the same bytes."""
        terms = self._terms
        blinds = [(terms.input(bytes.fromhex(each["nonce"])), int(each["blind"], 16)) for each in reports]
        salts = [bytes.fromhex(each["salt"]) for each in reports]
        requests = (terms.key.request(text, salt, r) for (text, r), salt in zip(blinds, salts, strict=True))
        headers = {"Content-Type": "application/private-token-request"}
        if invitation is not None:
            headers["Authorization"] = f"Bearer {invitation}"
        answer = self._transport(f"{self._url}/token", b"".join(requests), headers)
        parts = [answer[i : i + ANSWER_BYTES] for i in range(0, len(answer), ANSWER_BYTES)]
        try:
            tokens = [terms.key.token(text, part, r) for (text, r), part in zip(blinds, parts, strict=True)]
        except ValueError as error:
            raise StudyRefused(f"the issuer does not sign with the study's key: {error}") from None
        for each, token in zip(reports, tokens, strict=True):
            for name in ("nonce", "salt", "blind"):
                del each[name]
            each["token"] = base64url(token)

    def make(self, each: dict[str, Any], pay: Callable[[Task], None], gradient: Gradient) -> None:
        """Make a report if its round is open. If that is over, it is missed."""
        terms, known = self._terms, self._json("/round")
        now, state = known.get("round"), known.get("state")
        if known.get("study") != terms.id:
            raise StudyRefused(f"the service is now that of another study, {known.get('study')!r}")
        if "round" not in each and state == "open":
            each["round"] = checks.integer("round", now, 0, terms.known["rounds"] - 1)
        if state == "ended" or (isinstance(now, int) and now > each.get("round", now)):
            each["state"] = "missed"
        if state != "open" or now != each["round"]:
            return  # it is averaged, or the clocks differ
        task = terms.task(each["round"])
        weights = self._weights(task.round)
        pay(task)  # before the app computes: whether it fails or hangs depends on the data
        message = base64url(terms.scheme.encode(_answer(gradient, weights), task, secure_rng()))
        body = {"study": terms.id, "round": task.round, "token": each["token"], "report": message}
        each |= {"body": json.dumps(body, separators=(",", ":")), "epsilon": terms.scheme.privacy.epsilon}

    def send(self, body: str) -> str:
        """Whether a report was accepted or missed."""
        try:
            accepted = self._json("/report", body.encode()).get("accepted") is True
        except ServiceRefused as error:
            if error.code not in ("token-spent", "round-over", "closed"):
                raise
            accepted = error.code == "token-spent"
        return "accepted" if accepted else "missed"

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        fields = {} if body is None else {"content-type": "application/json"}
        relay = self._terms.known["relay"]
        if relay is None:
            return self._transport(self._url + path, body, fields)
        from sqsgd.federation.collect import oblivious

        signed = b"" if self._keys else self._transport(relay, None, {})
        try:
            self._keys = self._keys or oblivious.check_keys(signed, self._terms.signer, self._now)
        except oblivious.Malformed as error:
            raise StudyRefused(f"the keys that {relay} gives are not used: {error}") from None
        asked = oblivious.Request("GET" if body is None else "POST", path, fields, body or b"")
        try:
            inner = oblivious.pack_request(asked, self._terms.known["request_bytes"])
            sealed, opened = oblivious.encapsulate(self._keys, inner)
            answer = self._transport(relay, sealed, {"Content-Type": oblivious.REQUEST})
            given = oblivious.read_answer(opened(answer))
        except oblivious.Malformed as error:
            raise ServiceRefused(0, f"the relay's answer is invalid: {error}") from None
        if given.status != 200:
            raise _refused(given.status, given.body)
        return given.body

    def _json(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(self._ask(path, body)), dict):
                return found
        raise ServiceRefused(0, f"the answer of {path} is not a JSON object")

    def _weights(self, round: int) -> Vector:
        """Return the model of a round, checked before it meets any data."""
        content = self._ask(f"/model/{self._terms.id}/{round}")
        try:
            return checks.vector("weights", np.frombuffer(content, "<f4"), self._terms.scheme.dim)
        except ValueError as error:
            raise StudyRefused(f"the model is invalid: {error}") from None


def _named(invitation: str | None) -> str | None:
    """Return the study that an invitation is for, or None if it does not say."""
    with contextlib.suppress(ValueError):
        content = base64.urlsafe_b64decode((invitation or "") + "==")
        return content[:32].hex() if len(content) > 32 else None
    return None


def _drawn(terms: Terms) -> dict[str, Any]:
    """A device's part in a study: its rounds, the times of its visits, and what its tokens are made of."""
    reports: list[dict[str, Any]] = [{"state": "waiting"} for _ in range(terms.known["reports"])]
    if terms.known["visits"] == "drawn":
        for each in reports:
            round, place = secrets.randbelow(terms.known["rounds"]), secrets.randbelow(_UNIT)
            each |= {"round": round, "due": terms.at(round + _SPREAD * place / _UNIT)}
    for each in reports:
        each |= {"nonce": secrets.token_hex(32), "salt": secrets.token_hex(48)}
        each["blind"] = f"{terms.key.new_blind():x}"
    return {"study": terms.description.decode(), "reports": reports}


def _summary(terms: Terms, reports: list[dict[str, Any]], now: float) -> dict[str, Any]:
    states = [each["state"] for each in reports]
    waiting = [each.get("due", 0.0) for each in reports if each["state"] == "waiting"]
    soon = max(1.0, terms.known["round_seconds"] / 100)  # if the round is not open though it should be
    counted = {name: states.count(name) for name in ("accepted", "waiting", "missed")}
    return {"study": terms.id, **counted, "seconds": max(min(waiting) - now, soon) if waiting else None}


def _answer(gradient: Gradient, weights: Vector) -> Vector:
    """Return the app's gradient, or zeros where it fails: whether it fails depends on the user's data."""
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
        raise _refused(error.code, error.read(_MOST_TEXT)) from None
    except (URLError, HTTPException, OSError) as error:
        raise ServiceRefused(0, f"{url} does not answer: {error}") from None


def _refused(status: int, body: bytes) -> ServiceRefused:
    """What the service said, in its JSON or in any other words."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(body)
        if isinstance(found, dict) and isinstance(found.get("error"), str):
            return ServiceRefused(status, f"{found['error']}: {found.get('reason')}", found["error"])
    return ServiceRefused(status, body[:200].decode(errors="replace"))
