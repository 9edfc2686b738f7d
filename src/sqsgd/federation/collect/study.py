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
from typing import Any, get_type_hints

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sqsgd._internal import checks
from sqsgd._internal.files import prepared, put, read_toml, write_atomically
from sqsgd.core import Scheme
from sqsgd.training import Settings

KEY = "operator.key"
_STUDY, _NONCE, _SIGNATURE = 8, 16, 64
_CONTEXT = b"sqsgd invitation\0"
LENGTH = 4 * (-(-(_STUDY + _NONCE + _SIGNATURE) // 3))  # characters of an invitation, at most
MOST = 10**7


class InvalidInvitation(ValueError):
    """A text that is not an invitation to this study."""


def new_key(folder: Path) -> str:
    """Write a new signing key, for its owner alone to read; returns the public key."""
    private = Ed25519PrivateKey.generate()
    path = folder / KEY
    put(prepared(path, private.private_bytes_raw().hex().encode() + b"\n", 0o600), path)
    return private.public_key().public_bytes_raw().hex()


def read_key(path: Path, public: str) -> Ed25519PrivateKey:
    """The operator's signing key; ValueError if it is not that of the study."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist: only whoever holds the study's {KEY} can invite")
    try:
        private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
    except ValueError:
        raise ValueError(f"{path} holds no signing key") from None
    if private.public_key().public_bytes_raw().hex() != public:
        raise ValueError(f"{path} is the key of another study")
    return private


def invitations(private: Ed25519PrivateKey, study: str, count: int) -> Iterator[str]:
    """New invitations to a study. They are random: nothing is kept of them, and none tells who got it."""
    for _ in range(count):
        content = bytes.fromhex(study) + os.urandom(_NONCE)
        yield _text(content + private.sign(_CONTEXT + content))


class Inspector:
    """Tells invitations to one study from all other texts."""

    def __init__(self, study: str, public: str) -> None:
        self._study = bytes.fromhex(study)
        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))

    def number(self, invitation: object) -> str:
        """What the service stores of a used invitation; raises InvalidInvitation.

        Guarantees
        ----------
        * Every changed bit, and every invitation to another study, is refused:
          tests/collect/test_study.py::test_every_changed_bit_is_refused.
        """
        if not invitation:
            raise InvalidInvitation("this study is for invited devices only, and there is no invitation")
        if not isinstance(invitation, str) or len(invitation) > LENGTH:
            raise InvalidInvitation(f"an invitation is a text of at most {LENGTH} characters")
        try:
            token = base64.urlsafe_b64decode(invitation.encode() + b"=" * (-len(invitation) % 4))
        except (binascii.Error, ValueError):
            raise InvalidInvitation("the invitation is not base64url") from None
        if len(token) != _STUDY + _NONCE + _SIGNATURE or _text(token) != invitation:
            raise InvalidInvitation("the invitation is not complete")
        content, signature = token[:-_SIGNATURE], token[-_SIGNATURE:]
        if content[:_STUDY] != self._study:
            raise InvalidInvitation("the invitation is to another study")
        try:
            self._key.verify(signature, _CONTEXT + content)
        except InvalidSignature:
            raise InvalidInvitation("the operator did not sign the invitation") from None
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
    users: int
    epsilon: float = 8.0
    seed: int = field(default_factory=lambda: secrets.randbelow(MOST_SEED + 1))
    """Seed of the public randomness; by default drawn."""
    scheme: str = "auto"
    bytes: int = 48
    rounds: int = 40
    softmax: bool = False
    """The model is a softmax on features of unit length, for which bound and learning rate have a rule."""
    admission: str = INVITED
    """``invited``: one report per signed invitation; ``open``: anybody, at ``joins_per_minute``."""
    joins_per_minute: int = 600
    round_seconds: float = 86400.0
    """A round that is not full ends after this time, or is extended by as much if it has too few reports."""
    ticket_seconds: float = 600.0
    """The time that a device has for its report before its slot may be given to another."""
    fewest: int = 0
    """Reports without which a round does not end; 0: half of its slots."""
    key: str = ""
    """The public key of the invitations (Ed25519, hexadecimal)."""
    # The same in every study, and not in study.toml: a device draws its own noise and keeps no residual.
    secure: bool = field(default=True, init=False)
    track: bool = field(default=True, init=False)
    clip_norm: float = field(default=0.0, init=False)
    alpha: float = field(default=1.0, init=False)
    beta: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        """Check everything that does not depend on the scheme."""
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
            raise ValueError(
                f"round_seconds = {self.round_seconds:g} must be more than ticket_seconds = "
                f"{self.ticket_seconds:g}: nobody joins a round in the time that the last devices have left"
            )
        checks.integer("fewest", self.fewest, 0, self.slots)

    @property
    def slots(self) -> int:
        """The slots of a round; a remainder of the users gets none."""
        return self.users // self.rounds

    @cached_property
    def id(self) -> str:
        """16 hexadecimal digits that differ for other settings; invitations and devices name it."""
        content = json.dumps(self._stored, sort_keys=True).encode()
        return hashlib.blake2b(content, digest_size=8, person=b"sqsgd study").hexdigest()

    @cached_property
    def made_scheme(self) -> Scheme:
        """The scheme of the reports."""
        return self.make_scheme(self.dim, once=True)

    @property
    def _stored(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def public(self) -> dict[str, Any]:
        """What a device must know to make a report, and its owner to decide about it."""
        scheme, privacy = self.made_scheme, self.made_scheme.privacy
        return {
            "study": self.id,
            "name": self.name,
            "scheme": scheme.name,
            "dim": scheme.dim,
            "bytes": self.bytes,
            "options": self.options,
            "fingerprint": f"{scheme.fingerprint:08x}",
            "identity": [
                f"{scheme.name} {scheme.dim}",
                *(stage.identity for stage in scheme.transforms),
                scheme.mechanism.identity,
            ],
            "message_bytes": scheme.bits // 8,
            "epsilon": privacy.epsilon,
            "asked_epsilon": self.epsilon,
            "arithmetic": privacy.arithmetic,
            "rounds": self.rounds,
            "slots": self.slots,
            "seed": self.seed,
            "admission": self.admission,
            "ticket_seconds": self.ticket_seconds,
        }

    def write(self, folder: Path) -> None:
        """Write ``study.toml``."""
        import tomli_w

        write_atomically(folder / STUDY, tomli_w.dumps(self._stored).encode())


def make_study(values: Mapping[str, Any], key: str) -> Study:
    """A new study with everything decided, so that no later version decides otherwise."""
    few = {"bytes": min(Study.bytes, 4 * values["dim"])}  # the default never exceeds the whole gradient
    study = _study({**few, **values, "key": key}, "the study")
    scheme = study.made_scheme
    if not scheme.privacy.is_pure_local or scheme.privacy.arithmetic != "exact":
        raise ValueError(
            f"scheme = {study.scheme!r}: a study needs a pure local guarantee in exact arithmetic, and this "
            "scheme has none; write scheme = 'auto'"
        )
    study = study.fitted(scheme, study.slots, softmax=study.softmax and study.optimizer == "sgd")
    return dataclasses.replace(study, fewest=study.fewest or max(1, study.slots // 2))


def load_study(folder: Path) -> Study:
    """The study of a folder; ValueError if there is none."""
    path = folder / STUDY
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no {STUDY}: name a study's folder, or create one: sqsgd collect init"
        )
    return _study(read_toml(path), str(path))


def _study(values: Mapping[str, Any], where: str) -> Study:
    hints = get_type_hints(Study)
    kinds = {each.name: hints[each.name] for each in fields(Study) if each.init}
    return Study(**checks.fields(values, {**kinds, "options": dict}, where))
