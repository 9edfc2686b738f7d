"""Certificates and keys: the federation's own authority, the server's certificate, the nodes' keys."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

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

_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A private key and its public half or certificate, as the content of files."""

    private: bytes
    public: bytes


@dataclass(frozen=True, kw_only=True)
class Authority:
    """The federation's own certificate authority, the only one that nodes trust."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def files(self) -> Pair:
        """The key and the certificate as PEM."""
        return Pair(private=_pem(self.key), public=self.certificate.public_bytes(Encoding.PEM))


AUTHORITY_DAYS = 3650
"""So long that the server's certificate can be renewed several times before nodes need a new authority's."""


def make_authority(days: int) -> Authority:
    """A new authority that can sign server certificates, and no further authorities."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _common_name("sqsgd federation")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(key=key, certificate=certificate)


def make_server_pair(authority: Authority, hosts: Sequence[str], days: int) -> Pair:
    """A key and a certificate for a server with these hosts (names or addresses)."""
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = authority.certificate.subject
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _builder(_common_name(hosts[0]), issuer, key, days)
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    return Pair(private=_pem(key), public=certificate.public_bytes(Encoding.PEM))


def load_authority(key: Path, certificate: Path) -> Authority:
    """An authority from its files."""
    private = load_pem_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key} is not a key of sqsgd deploy init")
    return Authority(key=private, certificate=x509.load_pem_x509_certificate(certificate.read_bytes()))


def renewed(authority: Authority, certificate: bytes, days: int) -> bytes:
    """A certificate with the same key, names and uses that is valid from now on; no private key is needed.

    The authority's own certificate is renewed in the same way: what it signed stays valid under both.
    """
    old = x509.load_pem_x509_certificate(certificate)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=authority.certificate.subject,
        subject_name=old.subject,
        public_key=old.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        not_valid_after=now + timedelta(days=days),
        extensions=list(old.extensions),
    )
    return builder.sign(authority.key, hashes.SHA384()).public_bytes(Encoding.PEM)


def pem_of_openssh(public: bytes) -> bytes:
    """A node's public key in the form in which Flower sends it."""
    return load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def make_node_pair(comment: str) -> Pair:
    """A node's ECDSA P-384 key in OpenSSH's format, which Flower requires."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return Pair(
        private=key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        public=public + f" {comment}\n".encode(),
    )


def general_name(host: str) -> x509.GeneralName:
    """A host in the form in which a certificate names it.

    >>> general_name("127.0.0.1").value
    IPv4Address('127.0.0.1')
    >>> general_name("server.example.org").value
    'server.example.org'
    >>> general_name("no host")
    Traceback (most recent call last):
    ValueError: host = 'no host' must be a name such as server.example.org or an address such as 192.0.2.7
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    good = len(host) <= 253 and host.isascii() and not host.rsplit(".", 1)[-1].isdecimal()
    if not good or not all(
        0 < len(label) <= 63 and label.replace("-", "").isalnum() and label.strip("-") == label
        for label in labels
    ):
        raise ValueError(
            f"host = {host!r} must be a name such as server.example.org or an address such as 192.0.2.7"
        )
    return x509.DNSName(host)


def expiry(certificate: Path) -> datetime:
    """When a certificate expires."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def write_secret(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file that only its owner can read, from its creation on; refuses to replace one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
