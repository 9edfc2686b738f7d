"""A study: what is asked of its devices, when, and who may have its tokens (by signed invitation)."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sqsgd._internal import checks
from sqsgd._internal.files import prepared, put, read_toml, write_atomically
from sqsgd.core import Scheme
from sqsgd.federation.collect import tokens
from sqsgd.federation.collect.device import MOST_SEED, check_scheme, check_terms
from sqsgd.federation.collect.tokens import base64url, read_base64url
from sqsgd.training import Settings

KEYS = KEY, GATEWAY_KEY, TOKEN_KEY = ("operator.key", "gateway.key", tokens.KEY)
"""They sign invitations, the keys of the gateway, and tokens."""
_STUDY, _NONCE, _SIGNATURE = 32, 16, 64
_CONTEXT = b"sqsgd invitation\0"


def new_keys(folder: Path) -> dict[str, str]:
    """Write new keys, for their owner alone to read. Returns the public ones, as fields of the study."""
    made = {"token_key": base64url(tokens.new_token_key(folder / TOKEN_KEY).der)}
    for name, path in (("key", folder / KEY), ("gateway_key", folder / GATEWAY_KEY)):
        private = Ed25519PrivateKey.generate()
        put(prepared(path, private.private_bytes_raw().hex().encode() + b"\n"), path)
        made[name] = private.public_key().public_bytes_raw().hex()
    return made


def read_key(path: Path, public: str) -> Ed25519PrivateKey:
    """Return a signing key. Raises ValueError if it is missing or another study's."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist: only the holder of the study's {path.name} can sign")
    try:
        private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
    except ValueError:
        raise ValueError(f"{path} holds no signing key") from None
    if private.public_key().public_bytes_raw().hex() != public:
        raise ValueError(f"{path} is the key of another study")
    return private


def invitations(private: Ed25519PrivateKey, study: str, count: int) -> Iterator[str]:
    """New invitations to a study. They are random and not stored, and none reveals its recipient."""
    for _ in range(count):
        content = bytes.fromhex(study) + os.urandom(_NONCE)
        yield base64url(content + private.sign(_CONTEXT + content))


def invitation_number(invitation: object, study: str, public: str) -> str:
    """What the service stores of a used invitation. Raises ValueError if it is not an invitation to this
    study.

    Guarantees
    ----------
    * Every changed bit is detected: tests/collect/test_study.py::test_every_changed_bit_is_refused.
    """
    if not isinstance(invitation, str) or not invitation:
        raise ValueError("this study is for invited devices only, and no invitation was given")
    token = read_base64url("the invitation", invitation)
    if len(token) != _STUDY + _NONCE + _SIGNATURE:
        raise ValueError("the invitation is not complete")
    content, signature = token[:-_SIGNATURE], token[-_SIGNATURE:]
    if content[:_STUDY] != bytes.fromhex(study):
        raise ValueError("the invitation is to another study")
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, _CONTEXT + content)
    except InvalidSignature:
        raise ValueError("the operator did not sign the invitation") from None
    return hashlib.blake2b(content, digest_size=16, person=b"sqsgd invite").hexdigest()


_Content = bytes  # the class below has a field of that name
STUDY, PAGE, RUN = "study.toml", "page", "run"
INVITED, OPEN = "invited", "open"
DRAWN, ONCE = "drawn", "once"
_REQUEST = 1024  # inner requests have a multiple of this many bytes


@dataclass(frozen=True, kw_only=True)
class Study(Settings):
    """The settings of a study. All of them are public; ``make_study`` chooses what is left at 0 or auto."""

    name: str
    dim: int
    users: Annotated[int, "Devices that will report."]
    epsilon: float = 8.0
    seed: int = field(default_factory=lambda: secrets.randbelow(MOST_SEED + 1))
    scheme: str = "auto"
    bytes: int = 48
    rounds: int = 40
    softmax: Annotated[bool, "The model is a softmax on features of unit length."] = False
    visits: Annotated[str, "drawn: each device draws its rounds; once: it reports when it comes."] = DRAWN
    reports: Annotated[int, "Reports of one user."] = 1
    begins: Annotated[
        int, "Unix time of the first round; 0: after a round's time, or now for visits once."
    ] = 0
    round_seconds: Annotated[float, "Time that a round is open."] = 86400.0
    fewest: Annotated[int, "Reports without which a round takes no step; 0: half of those expected."] = 0
    relay: Annotated[str, "https address of the oblivious relay; empty: none."] = ""
    admission: Annotated[str, "invited: tokens for an invitation; open: for anybody, slowly."] = INVITED
    tokens_per_minute: Annotated[int, "Rate limit of an open study."] = 600
    key: str = ""  # the public key of the invitations (Ed25519, hexadecimal)
    token_key: str = ""  # the public key of the tokens (RFC 9578, base64url)
    gateway_key: str = ""  # the public key of whoever signs the gateway's keys (Ed25519, hexadecimal)
    # The same in every study, and not in study.toml: a device draws its own noise and keeps no residual.
    secure: bool = field(default=True, init=False)
    track: bool = field(default=False, init=False)
    clip_norm: float = field(default=0.0, init=False)
    alpha: float = field(default=1.0, init=False)
    beta: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.isprintable() or not 1 <= len(self.name) <= 100:
            raise ValueError(f"name = {self.name!r} must be 1 to 100 printable characters")
        checks.integer("users", self.users, 1, 2**31)
        check_terms({**vars(self), "relay": self.relay or None, "request_bytes": _REQUEST})
        checks.integer("rounds", self.rounds, 1, self.users * self.reports)
        if self.admission not in (INVITED, OPEN):
            raise ValueError(f"admission = {self.admission!r} must be {INVITED} or {OPEN}")
        checks.integer("tokens_per_minute", self.tokens_per_minute, 1, 10**7)
        checks.integer("fewest", self.fewest, 0, self.expected)

    @property
    def expected(self) -> int:
        """Reports of a round, if every device reports."""
        return self.users * self.reports // self.rounds

    @cached_property
    def description(self) -> _Content:
        """The answer of ``/study``: all that a device must know, in bytes that never change."""
        return json.dumps(self.public(), sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """The digest of the description, which devices compare: 64 hexadecimal digits."""
        return hashlib.sha256(self.description).hexdigest()

    @cached_property
    def made_scheme(self) -> Scheme:
        return self.make_scheme(self.dim, once=True)

    @cached_property
    def tokens(self) -> tokens.TokenKey:
        return tokens.TokenKey(read_base64url("token_key", self.token_key))

    @cached_property
    def request_bytes(self) -> int:
        """Bytes of every inner request: the address, the token and the report fit."""
        return _REQUEST * -(-(700 + 4 * self.made_scheme.bits // 24) // _REQUEST)

    def public(self) -> dict[str, Any]:
        """What a device must know to make a report, and its owner to decide about it."""
        scheme, privacy = self.made_scheme, self.made_scheme.privacy
        same = (
            "name", "bytes", "options", "seed", "bound", "rounds", "visits", "reports", "begins",
            "round_seconds", "admission", "token_key", "gateway_key", "request_bytes",
        )  # fmt: skip
        return {
            "format": 1,
            **{name: getattr(self, name) for name in same},
            "scheme": scheme.name,
            "dim": scheme.dim,
            "fingerprint": f"{scheme.fingerprint:08x}",
            "identity": scheme.identity.split("\n"),
            "message_bytes": scheme.bits // 8,
            "epsilon": privacy.epsilon,
            "asked_epsilon": self.epsilon,
            "arithmetic": privacy.arithmetic,
            "relay": self.relay or None,
        }

    def opens(self, round: int) -> float:
        """When a round begins by the schedule, in seconds since 1970."""
        return self.begins + round * self.round_seconds

    def write(self, folder: Path) -> None:
        import tomli_w

        stored = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        write_atomically(folder / STUDY, tomli_w.dumps(stored).encode())


def make_study(values: Mapping[str, Any]) -> Study:
    """Return a new study with everything decided, so that no later version decides otherwise."""
    few = {"bytes": min(Study.bytes, 4 * values["dim"])}  # the default never exceeds the whole gradient
    made = {**few, **values, "options": {"rotation": "round", **values.get("options", {})}}
    study = _study(made, "the study")
    if study.scheme == "auto":
        study = min(_countable(study), key=lambda each: each.made_scheme.nmse)
    try:
        scheme = check_scheme(study.made_scheme)
    except ValueError as error:
        raise ValueError(f"{error}; write scheme = 'auto'") from None
    softmax = study.softmax and study.optimizer == "sgd"
    study = study.fitted(scheme, study.expected, rule="softmax" if softmax else "")
    joining = study.round_seconds if study.visits == DRAWN else 0.0
    begins = study.begins or int(time.time() + joining)
    return dataclasses.replace(study, begins=begins, fewest=study.fewest or max(1, study.expected // 2))


def _countable(study: Study) -> Iterator[Study]:
    """The study with each scheme whose reports can be counted and that fits its bytes."""
    yield dataclasses.replace(study, scheme="privunit-index")
    with contextlib.suppress(ValueError):
        options = {**study.options, "code": "sparse"}
        sparse = dataclasses.replace(study, scheme="sqsgd-stateless", options=options)
        if sparse.made_scheme.symbols:
            yield sparse


def load_study(folder: Path) -> Study:
    """Return the study of a folder. Raises ValueError if there is none."""
    path = folder / STUDY
    if not path.is_file():
        create = "name a study's folder, or create one: sqsgd collect init"
        raise ValueError(f"{folder} holds no {STUDY}: {create}")
    return _study(read_toml(path), str(path))


def _study(values: Mapping[str, Any], where: str) -> Study:
    hints = get_type_hints(Study)
    kinds = {each.name: hints[each.name] for each in fields(Study) if each.init}
    if missing := [name for name in ("name", "dim", "users") if name not in values]:
        raise ValueError(f"{where} is incomplete: it has no {', '.join(missing)}")
    return Study(**checks.fields(values, {**kinds, "options": dict}, where))
