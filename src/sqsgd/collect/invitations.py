"""Invitations: single-use tokens that the operator signs, and that say nothing about who holds them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sqsgd.files.durable import prepared, put

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
          tests/collect/test_invitations.py::test_every_changed_bit_is_refused.
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
