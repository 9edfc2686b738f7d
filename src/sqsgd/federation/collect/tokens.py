"""Tokens that admit without identity: blind RSA signatures, unknown to their issuer.

RSABSSA-SHA384-PSS-Deterministic (RFC 9474) in the formats of Privacy Pass tokens of type 2 (RFC 9578).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import secrets
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sqsgd._internal.files import prepared, put

KEY = "token.key"
REQUEST_BYTES, ANSWER_BYTES, TOKEN_BYTES = 259, 256, 354
_TYPE, _EXPONENT, _SALT_BYTES, _INPUT_BYTES = b"\x00\x02", 65537, 48, 98
_HASH = hashes.SHA384()
_PSS = padding.PSS(padding.MGF1(_HASH), _SALT_BYTES)
# SubjectPublicKeyInfo of RFC 9578, section 8.2.2, up to the RSAPublicKey of 2,048 bits.
_SPKI = bytes.fromhex(
    "30820152303d06092a864886f70d01010a3030a00d300b0609608648016503040202a11a301806092a864886f70d010108"
    "300b0609608648016503040202a2030201300382010f00"
)
_RSA_KEY, _RSA_EXPONENT = bytes.fromhex("3082010a0282010100"), bytes.fromhex("0203010001")


def base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def read_base64url(name: str, text: object) -> bytes:
    """Decode base64url without padding. Raises ValueError unless this is its only valid spelling."""
    with contextlib.suppress(ValueError):
        content = base64.urlsafe_b64decode(f"{text}{'=' * (-len(str(text)) % 4)}")
        if base64url(content) == text:
            return content
    raise ValueError(f"{name} must be base64url without padding")


class TokenRefused(ValueError):
    """A token, or an answer of the issuer, that the key did not sign."""


def challenge(study: str) -> bytes:
    """Return the TokenChallenge (RFC 9577) of a study: its id is the redemption context."""
    issuer = b"study.invalid"
    return _TYPE + len(issuer).to_bytes(2) + issuer + b"\x20" + bytes.fromhex(study) + b"\x00\x00"


def encoded(message: bytes, salt: bytes, bits: int) -> int:
    """EMSA-PSS (RFC 8017, section 9.1.1) with SHA-384 for a modulus of ``bits`` bits."""
    length, digest = -(-(bits - 1) // 8), hashlib.sha384(message).digest()
    seed = hashlib.sha384(bytes(8) + digest + salt).digest()
    block = bytes(length - len(seed) - len(salt) - 2) + b"\x01" + salt
    mask = b"".join(hashlib.sha384(seed + i.to_bytes(4)).digest() for i in range(-(-len(block) // len(seed))))
    masked = int.from_bytes(block) ^ int.from_bytes(mask[: len(block)])
    masked &= (1 << bits - 1 - 8 * (length - len(block))) - 1
    return int.from_bytes(masked.to_bytes(len(block)) + seed + b"\xbc")


class TokenKey:
    """The public key of a study's tokens: 2,048 bits, exponent 65537."""

    def __init__(self, der: bytes) -> None:
        """Read the key. Raises TokenRefused if it is any other kind of key."""
        front = _SPKI + _RSA_KEY
        modulus = int.from_bytes(der[len(front) : len(front) + ANSWER_BYTES])
        if der != front + modulus.to_bytes(ANSWER_BYTES) + _RSA_EXPONENT or modulus.bit_length() != 2048:
            raise TokenRefused("the token key is not RSA-PSS with 2,048 bits, SHA-384 and a salt of 48 bytes")
        self.der, self._modulus = der, modulus

    @classmethod
    def of(cls, private: rsa.RSAPrivateKey) -> TokenKey:
        return cls(
            _SPKI
            + private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.PKCS1)
        )

    @cached_property
    def id(self) -> bytes:
        return hashlib.sha256(self.der).digest()

    @cached_property
    def _public(self) -> rsa.RSAPublicKey:
        return rsa.RSAPublicNumbers(_EXPONENT, self._modulus).public_key()

    def input(self, challenge: bytes, nonce: bytes) -> bytes:
        """What is signed."""
        return _TYPE + nonce + hashlib.sha256(challenge).digest() + self.id

    def new_blind(self) -> int:
        """Return a uniform r that has an inverse, from the operating system's randomness."""
        return _unit(self._modulus)

    def request(self, message: bytes, salt: bytes, r: int) -> bytes:
        """Return the request for a blind signature. Its number is uniform for any message."""
        blinded = encoded(message, salt, 2048) * pow(r, _EXPONENT, self._modulus) % self._modulus
        return _TYPE + self.id[-1:] + blinded.to_bytes(ANSWER_BYTES)

    def token(self, message: bytes, answer: bytes, r: int) -> bytes:
        """Return the token, verified. Raises TokenRefused if the issuer signed with another key."""
        signature = int.from_bytes(answer) * pow(r, -1, self._modulus) % self._modulus
        token = message + signature.to_bytes(ANSWER_BYTES)
        self._verify(token)
        return token

    def nonce(self, token: bytes, challenge: bytes) -> bytes:
        """Return the nonce of a valid token, by which it is spent.

        Guarantees
        ----------
        * Every changed bit is refused: tests/collect/test_tokens.py::test_every_changed_bit_is_refused.
        """
        if len(token) != TOKEN_BYTES or token[:_INPUT_BYTES] != self.input(challenge, token[2:34]):
            raise TokenRefused("the token is not one of this study")
        self._verify(token)
        return token[2:34]

    def _verify(self, token: bytes) -> None:
        try:
            self._public.verify(token[_INPUT_BYTES:], token[:_INPUT_BYTES], _PSS, _HASH)
        except InvalidSignature:
            raise TokenRefused("the token's signature is wrong") from None


def _unit(modulus: int) -> int:
    while math.gcd(r := 1 + secrets.randbelow(modulus - 1), modulus) != 1:
        pass
    return r


def new_token_key(path: Path) -> TokenKey:
    """Write a new issuer's key, for its owner alone to read."""
    private = rsa.generate_private_key(_EXPONENT, 2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    put(prepared(path, private.private_bytes(*form)), path)
    return TokenKey.of(private)


def read_token_key(path: Path, public: TokenKey) -> rsa.RSAPrivateKey:
    """Return the issuer's key. Raises ValueError if it is another study's."""
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), None)
    except ValueError:
        raise ValueError(f"{path} holds no key") from None
    if not isinstance(private, rsa.RSAPrivateKey) or TokenKey.of(private).der != public.der:
        raise ValueError(f"{path} is the key of another study")
    return private


def sign(private: rsa.RSAPrivateKey, blinded: bytes) -> bytes:
    """Return the blind signature: the raw private operation, which ``cryptography`` does not offer.

    Python's ``pow`` takes a time that depends on its numbers. So it never gets the request's number or the
    key's exponents, but the former times a random number, and the latter plus a random multiple of the order
    of their group: its time does not depend on the request. Another program on the processor that watches
    caches could still learn the key: then run the issuer on another machine. A wrong result would give the
    key away (Boneh, DeMillo, Lipton 1997), so it is not returned. tests/collect/test_tokens.py
    """
    numbers = private.private_numbers()
    p, q, modulus = numbers.p, numbers.q, numbers.public_numbers.n
    e, value, length = numbers.public_numbers.e, int.from_bytes(blinded), -(-modulus.bit_length() // 8)
    if len(blinded) != length or value >= modulus or math.gcd(value, modulus) != 1:
        raise TokenRefused("the blinded message is out of range")
    r = _unit(modulus)
    hidden = value * pow(r, e, modulus) % modulus
    at_p = pow(hidden % p, numbers.dmp1 + secrets.randbits(64) * (p - 1), p)
    at_q = pow(hidden % q, numbers.dmq1 + secrets.randbits(64) * (q - 1), q)
    root = (at_q + q * (numbers.iqmp * (at_p - at_q) % p)) * pow(r, -1, modulus) % modulus
    if pow(root, e, modulus) != value:
        raise ArithmeticError("the signature is wrong: this machine computed it incorrectly")
    return root.to_bytes(length)


def blinded_parts(public: TokenKey, requests: bytes, count: int) -> list[bytes]:
    """Return the blinded messages of ``count`` requests. Raises TokenRefused if they cannot be signed."""
    parts = [requests[i : i + REQUEST_BYTES] for i in range(0, len(requests), REQUEST_BYTES)]
    if len(requests) != count * REQUEST_BYTES:
        raise TokenRefused(f"{count} token requests have {count * REQUEST_BYTES} bytes")
    if any(part[:3] != _TYPE + public.id[-1:] or part[3:] >= public.der[-261:-5] for part in parts):
        raise TokenRefused("a token request is for another key")
    return [part[3:] for part in parts]
