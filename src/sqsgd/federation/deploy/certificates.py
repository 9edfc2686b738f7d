"""Certificates and keys: the federation's own authority, the server's certificate, the nodes' keys."""

import contextlib
import inspect
import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650  # the server's certificate is renewed several times before nodes need a new authority's
_CLOCK_SKEW = timedelta(hours=1)
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sqsgd federation")])


class Pair(NamedTuple):
    private: bytes
    public: bytes


def make_authority(days: int) -> Pair:
    key = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(key_cert_sign=True, crl_sign=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ]
    return Pair(_pem(key), _signed(key, _AUTHORITY, key.public_key(), extensions, days))


def make_server_pair(authority: bytes, hosts: Sequence[str], days: int) -> Pair:
    """A key and a certificate for a server with these hosts, signed with the authority's private key."""
    key, signer = ec.generate_private_key(ec.SECP384R1()), serialization.load_pem_private_key(authority, None)
    extensions = [
        (x509.SubjectAlternativeName([general_name(host) for host in hosts]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(cast(Any, signer.public_key())), False),
    ]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    return Pair(_pem(key), _signed(signer, name, key.public_key(), extensions, days))


def renewed(authority: bytes, certificate: bytes, days: int) -> bytes:
    """The certificate, valid from now on."""
    old = x509.load_pem_x509_certificate(certificate)
    extensions = [(each.value, each.critical) for each in old.extensions]
    signer = serialization.load_pem_private_key(authority, None)
    return _signed(signer, old.subject, old.public_key(), extensions, days)


def make_node_pair(comment: str) -> Pair:
    """Return a node's ECDSA P-384 key in OpenSSH's format, which Flower requires."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, serialization.NoEncryption())
    return Pair(private, public + f" {comment}\n".encode())


def pem_of_openssh(public: bytes) -> bytes:
    """A node's public key as Flower sends it. Raises ValueError if it is none."""
    key = serialization.load_ssh_public_key(public)
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def expiry(certificate: Path) -> datetime:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def general_name(host: str) -> x509.GeneralName:
    """Return a host in the form in which a certificate names it. Raises ValueError if it is none."""
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    if len(host) <= 253 and re.fullmatch(rf"({label}\.)*(?![0-9]+$){label}", host):
        return x509.DNSName(host)
    raise ValueError(f"host = {host!r} must be a name such as server.example.org or an address such as ::1")


def _signed(signer: Any, subject: x509.Name, key: Any, extensions: Sequence[Any], days: int) -> bytes:
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
    none = dict.fromkeys(list(inspect.signature(x509.KeyUsage).parameters), False)
    return x509.KeyUsage(**none | allowed)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())
