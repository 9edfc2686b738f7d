"""What a node checks before it starts: its settings and files, the server's certificate, its own clock.

Flower ends such a node without a word, or retries forever. Run by a node's ``run.sh``; exits with 1 and a
line for its owner if the node could not work. A server that does not answer is no failure: nodes wait for it.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm

from sqsgd.deploy.certificates import expiry, pem_of_openssh
from sqsgd.deploy.node import check_settings

KEY_HEADER = "flwr-public-key"
REVOKED = 401
AHEAD, BEHIND = 5.0, 305.0
"""Seconds by which a node's clock may be ahead of and behind the SuperLink's: what Flower allows."""
_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID
_PATIENCE = 10.0


def problems(node: Path, address: str) -> Iterator[str]:
    """Why a node could not work with this server, as far as can be seen; OSError if it does not answer."""
    try:
        check_settings(node)
        host, port = _split(address)
        ends, key = _own_files(node)
    except ValueError as error:
        yield str(error)
        return
    if ends < datetime.now(UTC):
        yield (
            f"{node / 'ca.pem'} expired on {ends:%Y-%m-%d %H:%M} UTC: get the renewed one from the server's "
            "operator (`sqsgd deploy renew --authority`)"
        )
        return
    trust = ssl.create_default_context(cafile=str(node / "ca.pem"))
    connection = http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=trust)
    try:
        connection.request("GET", "/", headers={KEY_HEADER: key})
        answer = connection.getresponse()
        seen = time.time()
    except ssl.SSLCertVerificationError as error:
        yield _about_certificate(error, address)
        return
    finally:
        connection.close()
    if answer.status == REVOKED:
        yield f"the server's operator has revoked this node's key ({node / 'key.pub'})"
    if (date := answer.getheader("Date")) is not None:
        yield from clock_problems(seen - parsedate_to_datetime(date).timestamp() - 0.5)  # whole seconds


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"the server's address, {address!r}, must look like server.example.org:8000")
    return host.strip("[]"), int(port)


def _own_files(node: Path) -> tuple[datetime, str]:
    """When the authority's certificate expires, and the node's public key as its requests name it."""
    for name in ("ca.pem", "key", "key.pub"):
        if not (node / name).is_file():
            raise ValueError(f"{node / name} is missing: copy the node's folder again, without its state/")
    try:
        name = "ca.pem"
        ends = expiry(node / name)
        name = "key.pub"
        return ends, base64.b64encode(pem_of_openssh((node / name).read_bytes())).decode()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{node / name} is damaged: {error}") from None


def clock_problems(ahead: float) -> Iterator[str]:
    """What is wrong with a clock that is so many seconds ahead, known to half a second.

    >>> list(clock_problems(4.0)), list(clock_problems(-100.0))
    ([], [])
    >>> list(clock_problems(10.0))
    ["this machine's clock is 10 s ahead of the server's; at most 5 s are allowed: synchronise it (NTP)"]
    """
    if ahead > AHEAD + 0.5 or ahead < -BEHIND - 0.5:
        way, limit = ("ahead of", AHEAD) if ahead > 0 else ("behind", BEHIND)
        yield (
            f"this machine's clock is {abs(ahead):.0f} s {way} the server's; "
            f"at most {limit:.0f} s are allowed: synchronise it (NTP)"
        )


def _about_certificate(error: ssl.SSLCertVerificationError, address: str) -> str:
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC on this machine's clock"
    if error.verify_code == _EXPIRED:
        return f"the certificate of the server at {address} has expired (it is {now}): `sqsgd deploy renew`"
    if error.verify_code == _NOT_YET:
        return f"the certificate of the server at {address} is not valid yet: it is {now}"
    return f"the certificate of the server at {address} is not accepted: {error.verify_message}"


def main(arguments: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    node, address = Path(arguments[0]), arguments[1]
    try:
        found = list(problems(node, address))
    except (OSError, http.client.HTTPException) as error:
        print(f"the server at {address} does not answer yet: {error}", file=sys.stderr)  # noqa: T201
        return 0
    for line in found:
        print(f"this node cannot work: {line}", file=sys.stderr, flush=True)  # noqa: T201
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
