"""How many bytes each node may send through the gate, and who sends them.

The SuperLink stores what nodes send. Without a quota, a single registered node could fill the server's disk
with parts of replies that nobody asked for. A node is known by its key: every request holds the public key
and a signature of the time, which the SuperLink checks again. The strategy trims the store after each
round; what arrives later than that stays until the run ends, at no more than the quota of each minute. A
quota of a day that bounds the total would stop honest nodes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from sqsgd.deploy.preflight import BEHIND

KEY, SIGNATURE, TIME = _SIGNED = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
WRAPPING = 16 * 1024
"""Bytes of a reply besides twice the report: Flower's records, names and polls (3 kB in 1.41)."""
POLLING = 64 * 1024
"""Bytes a minute for requests that carry no reply."""
A_MINUTE = 20
"""Replies, counted with twice the report, for which the quota of a minute suffices.

A round every two seconds with an evaluation in each takes three quarters of it at most:
tests/deploy/test_quotas.py::test_an_honest_day_fits.
"""
MOST_KEYS = 1 << 16
"""Keys whose quotas are remembered; those that sent last. The gate checks fewer signatures in a minute, after
which a quota is whole again, so that nobody gains by being forgotten."""


def signed_headers(head: bytes) -> dict[bytes, list[bytes]]:
    """The values of the headers by which a node identifies itself."""
    found: dict[bytes, list[bytes]] = {name: [] for name in _SIGNED}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if (name := name.strip().lower()) in found:
            found[name].append(value.strip())
    return found


def sender(head: bytes) -> bytes | None:
    """The public key, in the form in which the request has it, of the node that signed a request.

    None: no key did, or too long ago, so that the SuperLink refuses it. A time that is ahead is not judged
    here: it may have come by the time that the SuperLink reads it. That somebody else names a node's key
    costs that node nothing: tests/deploy/test_quotas.py::test_nobody_else_spends_a_nodes_quota.
    """
    values = signed_headers(head)
    if any(len(each) != 1 for each in values.values()):
        return None
    try:
        key, signature = (base64.b64decode(values[name][0], validate=True) for name in (KEY, SIGNATURE))
        public = load_pem_public_key(key)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return None
        public.verify(signature, values[TIME][0], ec.ECDSA(hashes.SHA256()))
        age = datetime.now(UTC) - datetime.fromisoformat(values[TIME][0].decode("ascii"))
    except (ValueError, TypeError, binascii.Error, InvalidSignature, UnsupportedAlgorithm):
        return None
    return key if age < timedelta(seconds=BEHIND) else None


@dataclass(slots=True)
class Bucket:
    """So many bytes at once, and as many again over the next ``seconds``.

    >>> bucket = Bucket(capacity=100.0, seconds=60.0, clock=lambda: 0.0)
    >>> bucket.take(70), bucket.take(70), bucket.take(30)
    (True, False, True)
    """

    capacity: float
    seconds: float
    clock: Callable[[], float] = time.monotonic
    left: float = field(init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self.left, self._since = self.capacity, self.clock()

    def take(self, size: float) -> bool:
        """Take so much; False, and nothing is taken, if there is less."""
        now = self.clock()
        self.left = min(self.capacity, self.left + (now - self._since) * self.capacity / self.seconds)
        self._since = now
        if size > self.left:
            return False
        self.left -= size
        return True


class Quotas:
    """The bytes of request bodies that each key may send in a minute, for reports of ``report`` bytes.

    Guarantees
    ----------
    * Of no key more is forwarded in any minute than twice the quota, nor in n minutes than n + 1 quotas:
      tests/deploy/test_quotas.py::test_no_minute_holds_more_than_two_quotas.
    * No key spends another's: tests/deploy/test_quotas.py::test_strangers_do_not_spend_the_quotas_of_others.
    """

    def __init__(self, report: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.a_minute = POLLING + A_MINUTE * (2 * report + WRAPPING)
        self._clock, self._buckets = clock, OrderedDict[bytes, Bucket]()

    def exceeded(self, key: bytes, size: int) -> str:
        """Charge a key for so many bytes. If its quota is too small: that quota, and nothing is charged."""
        account = hashlib.sha256(key).digest()  # a stranger's key may be long
        if account not in self._buckets:
            self._buckets[account] = Bucket(self.a_minute, 60.0, self._clock)
        self._buckets.move_to_end(account)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        return "" if self._buckets[account].take(size) else f"{self.a_minute} bytes a minute"
