"""Oblivious HTTP (RFC 9458), binary HTTP (RFC 9292): the service does not see who asks, nor the relay what.

Binary messages have a known length. HPKE is the package ``pyhpke``'s, over ``cryptography``.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, KEMKey, KEMKeyPair
from pyhpke.exceptions import PyHPKEError

WELL_KNOWN = "/.well-known/ohttp-gateway"
KEYS, REQUEST, ANSWER = "application/ohttp-keys", "message/ohttp-req", "message/ohttp-res"
AUTHORITY = "study.invalid"  # the same for everybody: a name could tell users apart
_KEM, _KDF = 0x0020, 0x0001  # X25519 and SHA-256
_AEADS = {0x0001: (AEADId.AES128_GCM, AESGCM, 16), 0x0003: (AEADId.CHACHA20_POLY1305, ChaCha20Poly1305, 32)}
_NONCE, _HEADER, _ENC = 12, 7, 32
_MOST_FIELDS = 16
_SUITES = {
    aead: CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, known)
    for aead, (known, *_) in _AEADS.items()
}

Fields = Mapping[str, str]


class Malformed(ValueError):
    """A message that is not valid; ``unknown_key``: it was sealed with a key that is not in use."""

    def __init__(self, reason: str, *, unknown_key: bool = False) -> None:
        super().__init__(reason)
        self.unknown_key = unknown_key


class Request(NamedTuple):
    """What a device asks."""

    method: str
    path: str
    fields: Fields
    body: bytes


class Answer(NamedTuple):
    """What the service answers."""

    status: int
    fields: Fields
    body: bytes


# ---------------------------------------------------------------- binary HTTP


def _varint(value: int) -> bytes:
    for power, limit in enumerate((1 << 6, 1 << 14, 1 << 30, 1 << 62)):
        if value < limit:
            return (value | power << (8 << power) - 2).to_bytes(1 << power)
    raise ValueError(f"{value} is too large for a length")


def _counted(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _lines(fields: Fields) -> bytes:
    return _counted(b"".join(_counted(text.encode()) for field in fields.items() for text in field))


def pack_request(asked: Request, length: int = 0, authority: str = AUTHORITY) -> bytes:
    """Return a request of exactly ``length`` bytes, if it is not longer."""
    control = (asked.method.encode(), b"https", authority.encode(), asked.path.encode())
    head = b"\x00" + b"".join(map(_counted, control))
    return (head + _lines(asked.fields) + _counted(asked.body) + b"\x00").ljust(length, b"\x00")


def pack_answer(given: Answer, multiple: int = 1) -> bytes:
    """Return an answer whose length is a multiple of ``multiple``."""
    content = b"\x01" + _varint(given.status) + _lines(given.fields) + _counted(given.body) + b"\x00"
    return content.ljust(-(-len(content) // multiple) * multiple, b"\x00")


class _Reader(BytesIO):
    """Reads a binary message. What is missing at its end is empty (RFC 9292, section 3.8)."""

    def take(self, size: int) -> bytes:
        if len(part := self.read(size)) != size:
            raise Malformed("the binary message is too short")
        return part

    def number(self) -> int:
        first = self.take(1)[0]
        return int.from_bytes(bytes([first & 63]) + self.take((1 << (first >> 6)) - 1))

    def text(self) -> str:
        try:
            return self.take(self.number()).decode("ascii")
        except UnicodeDecodeError:
            raise Malformed("the binary message contains a text that is not ASCII") from None

    def more(self) -> bool:
        return self.tell() < len(self.getbuffer())

    def rest(self) -> tuple[dict[str, str], bytes]:
        """Fields and content, and after them nothing but an empty trailer and zeros."""
        lines, fields = _Reader(self.take(self.number()) if self.more() else b""), dict[str, str]()
        while lines.more():
            name, value = lines.text(), lines.text()
            fields[name.lower()] = value
            if len(fields) > _MOST_FIELDS:
                raise Malformed("the binary message has too many fields")
        body = self.take(self.number()) if self.more() else b""
        if any(self.read()):
            raise Malformed("the binary message has trailers, or its padding is not zero")
        return fields, body


def read_request(content: bytes) -> Request:
    read = _Reader(content)
    if read.number() != 0:
        raise Malformed("this is not a binary request of known length")
    method, _scheme, _authority, path = read.text(), read.text(), read.text(), read.text()
    return Request(method, path, *read.rest())


def read_answer(content: bytes) -> Answer:
    read = _Reader(content)
    if read.number() != 1:
        raise Malformed("this is not a binary answer of known length")
    while (status := read.number()) < 200:  # informational
        read.take(read.number())
    return Answer(status, *read.rest())


# ---------------------------------------------------------------- encapsulation


def _info(header: bytes) -> bytes:
    return b"message/bhttp request\x00" + header


def _answer_cipher(context: Any, enc: bytes, nonce: bytes, aead: int) -> tuple[Any, bytes]:
    """Return the cipher and the nonce of an answer (RFC 9458, section 4.4)."""
    _, cipher, size = _AEADS[aead]
    secret = context.export(b"message/bhttp response", max(size, _NONCE))
    key = hmac.digest(enc + nonce, secret, "sha256")
    expanded = [hmac.digest(key, info + b"\x01", "sha256") for info in (b"key", b"nonce")]
    return cipher(expanded[0][:size]), expanded[1][:_NONCE]


class GatewayKey(NamedTuple):
    """A private key of the gateway, by its number."""

    number: int
    private: bytes

    def made(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private)

    @property
    def configuration(self) -> bytes:
        """The public part after its length, as in ``application/ohttp-keys``."""
        suites = b"".join(_KDF.to_bytes(2) + aead.to_bytes(2) for aead in _AEADS)
        head = bytes([self.number]) + _KEM.to_bytes(2) + self.made().public_key().public_bytes_raw()
        content = head + len(suites).to_bytes(2) + suites
        return len(content).to_bytes(2) + content


# ---------------------------------------------------------------- the study signs the gateway's keys

_CONTEXT, _SIGNATURE, _TIME = b"sqsgd gateway keys\0", 64, 8
# The signature is the last entry of the list. It has the number of no KEM, so that others skip it.
_SIGNED = (3 + _TIME + _SIGNATURE).to_bytes(2) + bytes.fromhex("00ffff")


def sign_keys(keys: bytes, until: int, signer: Ed25519PrivateKey) -> bytes:
    """Return the configurations, and the study's signature of them, valid until a Unix time."""
    content = keys + _SIGNED + until.to_bytes(_TIME)
    return content + signer.sign(_CONTEXT + content)


def check_keys(signed: bytes, signer: Ed25519PublicKey, now: float) -> bytes:
    """Return the configurations, if the study signed them and they are valid now. Raises Malformed if not.

    Guarantees
    ----------
    * Every changed bit is refused: tests/collect/test_protocol.py::test_signed_keys.
    * A relay that gives devices keys of its own reads nothing:
      tests/collect/test_device.py::test_a_relay_that_replaces_the_keys_reads_nothing.
    """
    content, signature = signed[:-_SIGNATURE], signed[-_SIGNATURE:]
    try:
        signer.verify(signature, _CONTEXT + content)
    except InvalidSignature:
        advice = "tell the study's owner, and try again from another network"
        reason = f"the study did not sign them: whoever gave them could read reports; {advice}"
        raise Malformed(reason) from None
    if now >= valid_until(signed):
        end = datetime.fromtimestamp(valid_until(signed), UTC).isoformat(" ", "minutes")
        raise Malformed(f"they expired at {end}: set this device's clock, or tell the study's owner")
    return content[: -len(_SIGNED) - _TIME]


def valid_until(signed: bytes) -> int:
    """Return the Unix time until which signed configurations are valid."""
    return int.from_bytes(signed[:-_SIGNATURE][-_TIME:])


class Gateway:
    """Opens encapsulated requests and seals the answers to them; ``signed``: what devices are given."""

    def __init__(self, keys: Sequence[GatewayKey], signed: bytes = b"") -> None:
        self._keys = {key.number: KEMKey.from_pyca_cryptography_key(key.made()) for key in keys}
        self.signed = signed

    def open(self, content: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
        """Return the inner request, and how to seal its answer. Raises Malformed if it cannot be opened."""
        header, enc = content[:_HEADER], content[_HEADER : _HEADER + _ENC]
        kem, kdf, aead = (int.from_bytes(header[i : i + 2]) for i in (1, 3, 5))
        if len(enc) != _ENC or header[0] not in self._keys:
            reason = "the request is too short, or for a key that is not in use"
            raise Malformed(reason, unknown_key=len(enc) == _ENC)
        if (kem, kdf) != (_KEM, _KDF) or aead not in _SUITES:
            raise Malformed("the request is for algorithms that are not offered", unknown_key=True)
        try:
            context = _SUITES[aead].create_recipient_context(enc, self._keys[header[0]], _info(header))
            inner = context.open(content[_HEADER + _ENC :])
        except PyHPKEError:
            raise Malformed("the request cannot be opened", unknown_key=True) from None

        def seal(answer: bytes, nonce: bytes = b"") -> bytes:
            nonce = nonce or os.urandom(max(_AEADS[aead][2], _NONCE))
            cipher, start = _answer_cipher(context, enc, nonce, aead)
            return nonce + bytes(cipher.encrypt(start, answer, b""))

        return inner, seal


def encapsulate(
    keys: bytes, inner: bytes, *, aead: int = 0x0001, ephemeral: KEMKeyPair | None = None
) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Return the device's side: the encapsulated request, and how to open its answer.

    Args:
        keys: ``application/ohttp-keys``; the first configuration that is understood is taken.
        inner: The binary request.
        aead: AES-128-GCM, or 3 for ChaCha20-Poly1305.
        ephemeral: For test vectors alone.
    """
    number, public = _choose(keys, aead)
    header = bytes([number]) + b"".join(value.to_bytes(2) for value in (_KEM, _KDF, aead))
    suite = _SUITES[aead]
    receiver = suite.kem.deserialize_public_key(public)
    enc, context = suite.create_sender_context(receiver, _info(header), eks=ephemeral)
    sealed = header + enc + context.seal(inner)

    def open_answer(answer: bytes) -> bytes:
        size = max(_AEADS[aead][2], _NONCE)
        cipher, start = _answer_cipher(context, enc, answer[:size], aead)
        try:
            return bytes(cipher.decrypt(start, answer[size:], b""))
        except (InvalidTag, ValueError):
            raise Malformed("the answer cannot be opened: it was not made by the gateway") from None

    return sealed, open_answer


def _choose(keys: bytes, aead: int) -> tuple[int, bytes]:
    """Number and public key of the first configuration with our algorithms."""
    at = 0
    while at < len(keys):
        end = at + 2 + int.from_bytes(keys[at : at + 2])
        found, at = keys[at + 2 : end], end
        suites = found[_HEADER - 2 + _ENC :]
        wanted = _KDF.to_bytes(2) + aead.to_bytes(2)
        pairs = [suites[i : i + 4] for i in range(0, len(suites), 4)]
        if len(keys) >= end and int.from_bytes(found[1:3]) == _KEM and wanted in pairs:
            return found[0], found[3 : 3 + _ENC]
    raise Malformed("the gateway offers no key that this device understands")
