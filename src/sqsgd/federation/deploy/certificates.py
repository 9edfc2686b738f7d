"""Certificates and keys: the federation's own authority, the server's certificate, the nodes' keys."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650  # the server's certificate is renewed several times before nodes need a new authority's
_CLOCK_SKEW = timedelta(hours=1)
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sqsgd federation")])


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A private key and its public half or certificate, as the content of files."""

    private: bytes
    public: bytes


def make_authority(days: int) -> Pair:
    """A new authority, the only one that nodes trust; it can sign server certificates, and no authorities."""
    key = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(key_cert_sign=True, crl_sign=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ]
    return Pair(private=_pem(key), public=_signed(key, _AUTHORITY, key.public_key(), extensions, days))


def make_server_pair(authority: bytes, hosts: Sequence[str], days: int) -> Pair:
    """A key and a certificate for a server with these hosts, signed with the authority's private key."""
    key, signer = ec.generate_private_key(ec.SECP384R1()), _authority_key(authority)
    extensions = [
        (x509.SubjectAlternativeName([general_name(host) for host in hosts]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    return Pair(private=_pem(key), public=_signed(signer, name, key.public_key(), extensions, days))


def renewed(authority: bytes, certificate: bytes, days: int) -> bytes:
    """A certificate with the same key, names and uses that is valid from now on.

    The authority's own certificate is renewed in the same way: what it signed stays valid under both.
    """
    old = x509.load_pem_x509_certificate(certificate)
    extensions = [(each.value, each.critical) for each in old.extensions]
    return _signed(_authority_key(authority), old.subject, old.public_key(), extensions, days)


def make_node_pair(comment: str) -> Pair:
    """A node's ECDSA P-384 key in OpenSSH's format, which Flower requires."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return Pair(
        private=key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        public=public + f" {comment}\n".encode(),
    )


def pem_of_openssh(public: bytes) -> bytes:
    """A node's public key in the form in which Flower sends it; ValueError if it is none."""
    return load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def expiry(certificate: Path) -> datetime:
    """When a certificate expires."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def general_name(host: str) -> x509.GeneralName:
    """A host in the form in which a certificate names it.

    >>> general_name("127.0.0.1").value
    IPv4Address('127.0.0.1')
    >>> general_name("no host")
    Traceback (most recent call last):
    ValueError: host = 'no host' must be a name such as server.example.org or an address such as 192.0.2.7
    """
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    if len(host) <= 253 and re.fullmatch(rf"({label}\.)*(?![0-9]+$){label}", host):
        return x509.DNSName(host)
    raise ValueError(
        f"host = {host!r} must be a name such as server.example.org or an address such as 192.0.2.7"
    )


def write_secret(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file that only its owner can read, from its creation on; refuses to replace one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _authority_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("authority/ca.key is not a key of sqsgd deploy init")
    return key


def _signed(
    signer: ec.EllipticCurvePrivateKey, subject: x509.Name, key: Any, extensions: Sequence[Any], days: int
) -> bytes:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=_AUTHORITY,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        not_valid_after=now + timedelta(days=days),
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
