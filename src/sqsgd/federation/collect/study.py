"""A study: what is asked of its devices, who may report (by signed invitation), how long a round takes."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
import os
import secrets
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
from sqsgd.training import Settings

KEY = "operator.key"
_STUDY, _NONCE, _SIGNATURE = 8, 16, 64
_CONTEXT = b"sqsgd invitation\0"


def new_key(folder: Path) -> str:
    """Write a new signing key, for its owner alone to read; returns the public key."""
    private = Ed25519PrivateKey.generate()
    path = folder / KEY
    put(prepared(path, private.private_bytes_raw().hex().encode() + b"\n", 0o600), path)
    return private.public_key().public_bytes_raw().hex()


def read_key(path: Path, public: str) -> Ed25519PrivateKey:
    """The operator's signing key; ValueError if it is another study's."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist: only the holder of the study's {KEY} can invite")
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
        yield _text(content + private.sign(_CONTEXT + content))


def invitation_number(invitation: object, study: str, public: str) -> str:
    """What the service stores of a used invitation; ValueError if it is not an invitation to this study.

    Guarantees
    ----------
    * Every changed bit is detected: tests/collect/test_study.py::test_every_changed_bit_is_refused.
    """
    if not isinstance(invitation, str) or not invitation:
        raise ValueError("this study is for invited devices only, and no invitation was given")
    try:
        token = base64.urlsafe_b64decode(invitation.encode() + b"=" * (-len(invitation) % 4))
    except (binascii.Error, ValueError):
        raise ValueError("the invitation is not base64url") from None
    if len(token) != _STUDY + _NONCE + _SIGNATURE or _text(token) != invitation:
        raise ValueError("the invitation is not complete")
    content, signature = token[:-_SIGNATURE], token[-_SIGNATURE:]
    if content[:_STUDY] != bytes.fromhex(study):
        raise ValueError("the invitation is to another study")
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, _CONTEXT + content)
    except InvalidSignature:
        raise ValueError("the operator did not sign the invitation") from None
    return hashlib.blake2b(content, digest_size=16, person=b"sqsgd invite").hexdigest()


def _text(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


STUDY, PAGE, RUN = "study.toml", "page", "run"
INVITED, OPEN = "invited", "open"
MOST_SEED = 2**53 - 1  # numbers in JavaScript are exact up to here


@dataclass(frozen=True, kw_only=True)
class Study(Settings):
    """The settings of a study. All of them are public; ``make_study`` chooses what is left at 0 or auto."""

    name: str
    dim: int
    users: Annotated[int, "Devices that will report, over all rounds."]
    epsilon: float = 8.0
    seed: int = field(default_factory=lambda: secrets.randbelow(MOST_SEED + 1))
    scheme: str = "auto"
    bytes: int = 48
    rounds: int = 40
    softmax: Annotated[bool, "The model is a softmax on features of unit length."] = False
    admission: Annotated[str, "invited: one report per invitation; open: anybody, slowly."] = INVITED
    joins_per_minute: Annotated[int, "Rate limit of an open study."] = 600
    round_seconds: Annotated[float, "Time after which a round ends; longer with too few reports."] = 86400.0
    ticket_seconds: Annotated[float, "Time that a device has for its report."] = 600.0
    fewest: Annotated[int, "Reports without which no round ends; 0: half."] = 0
    key: str = ""  # the public key of the invitations (Ed25519, hexadecimal)
    # The same in every study, and not in study.toml: a device draws its own noise and keeps no residual.
    secure: bool = field(default=True, init=False)
    track: bool = field(default=True, init=False)
    clip_norm: float = field(default=0.0, init=False)
    alpha: float = field(default=1.0, init=False)
    beta: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.isprintable() or not 1 <= len(self.name) <= 100:
            raise ValueError(f"name = {self.name!r} must be 1 to 100 printable characters")
        checks.integer("dim", self.dim, 1, 2**24)
        checks.integer("users", self.users, 1, 2**31)
        checks.integer("rounds", self.rounds, 1, min(self.users, 10**6))
        checks.integer("seed", self.seed, 0, MOST_SEED)
        if self.admission not in (INVITED, OPEN):
            raise ValueError(f"admission = {self.admission!r} must be {INVITED} or {OPEN}")
        checks.integer("joins_per_minute", self.joins_per_minute, 1, 10**7)
        checks.real("ticket_seconds", self.ticket_seconds, 1.0, 1e7)
        checks.real("round_seconds", self.round_seconds, 1.0, 1e9)
        if self.round_seconds <= self.ticket_seconds:
            least = f"must be more than ticket_seconds = {self.ticket_seconds:g}"
            raise ValueError(f"round_seconds = {self.round_seconds:g} {least}, or nobody could join a round")
        checks.integer("fewest", self.fewest, 0, self.slots)

    @property
    def slots(self) -> int:
        """Of a round; a remainder of the users gets none."""
        return self.users // self.rounds

    @cached_property
    def id(self) -> str:
        """16 hexadecimal digits that differ for other settings."""
        content = json.dumps(self._stored, sort_keys=True).encode()
        return hashlib.blake2b(content, digest_size=8, person=b"sqsgd study").hexdigest()

    @cached_property
    def made_scheme(self) -> Scheme:
        return self.make_scheme(self.dim, once=True)

    @property
    def _stored(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def public(self) -> dict[str, Any]:
        """What a device must know to make a report, and its owner to decide about it."""
        scheme, privacy = self.made_scheme, self.made_scheme.privacy
        stages = [stage.identity for stage in (*scheme.transforms, scheme.mechanism)]
        same = ("name", "bytes", "options", "rounds", "slots", "seed", "admission", "ticket_seconds")
        return {
            "study": self.id,
            **{name: getattr(self, name) for name in same},
            "scheme": scheme.name,
            "dim": scheme.dim,
            "fingerprint": f"{scheme.fingerprint:08x}",
            "identity": [f"{scheme.name} {scheme.dim}", *stages],
            "message_bytes": scheme.bits // 8,
            "epsilon": privacy.epsilon,
            "asked_epsilon": self.epsilon,
            "arithmetic": privacy.arithmetic,
        }

    def write(self, folder: Path) -> None:
        import tomli_w

        write_atomically(folder / STUDY, tomli_w.dumps(self._stored).encode())


def make_study(values: Mapping[str, Any], key: str) -> Study:
    """A new study with everything decided, so that no later version decides otherwise."""
    few = {"bytes": min(Study.bytes, 4 * values["dim"])}  # the default never exceeds the whole gradient
    study = _study({**few, **values, "key": key}, "the study")
    scheme = study.made_scheme
    if not scheme.privacy.is_pure_local or scheme.privacy.arithmetic != "exact":
        lacks = "a study needs a pure local guarantee in exact arithmetic, and this scheme has none"
        raise ValueError(f"scheme = {study.scheme!r}: {lacks}; write scheme = 'auto'")
    softmax = study.softmax and study.optimizer == "sgd"
    study = study.fitted(scheme, study.slots, rule="softmax" if softmax else "")
    return dataclasses.replace(study, fewest=study.fewest or max(1, study.slots // 2))


def load_study(folder: Path) -> Study:
    """The study of a folder; ValueError if there is none."""
    path = folder / STUDY
    if not path.is_file():
        create = "name a study's folder, or create one: sqsgd collect init"
        raise ValueError(f"{folder} holds no {STUDY}: {create}")
    return _study(read_toml(path), str(path))


def _study(values: Mapping[str, Any], where: str) -> Study:
    hints = get_type_hints(Study)
    kinds = {each.name: hints[each.name] for each in fields(Study) if each.init}
    return Study(**checks.fields(values, {**kinds, "options": dict}, where))
