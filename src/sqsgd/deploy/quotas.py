"""How many bytes each node may send through the gate, and who sends them.

The SuperLink stores what nodes send. Without a quota, a single registered node could fill the server's disk
with parts of replies that nobody asked for. A node is known by its key: every request holds the public key
and a signature of the time, which the SuperLink checks again.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

KEY, SIGNATURE, TIME = _SIGNED = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
WRAPPING = 16 * 1024
"""Bytes of a reply besides twice the report: Flower's records, names and polls (3 kB in 1.41)."""
POLLING = 64 * 1024
"""Bytes a minute for requests that carry no reply."""
A_MINUTE, A_DAY = 12, 4000
"""Replies for which the quotas suffice."""
OTHERS = "keys that are not in nodes/"
"""What nodes that were registered by hand are called; they share one quota."""


def signed_headers(head: bytes) -> dict[bytes, list[bytes]]:
    """The values of the headers by which a node identifies itself."""
    found: dict[bytes, list[bytes]] = {name: [] for name in _SIGNED}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if (name := name.strip().lower()) in found:
            found[name].append(value.strip())
    return found


def sender(head: bytes, names: Mapping[bytes, str]) -> str | None:
    """The name of the node that signed a request; None: nobody did, so that the SuperLink refuses it.

    ``names``: those of the nodes' public keys. That somebody else names a node's key costs that node nothing:
    tests/deploy/test_quotas.py::test_nobody_else_spends_a_nodes_quota.
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
    except (ValueError, binascii.Error, InvalidSignature, UnsupportedAlgorithm):
        return None
    return names.get(key, OTHERS)


@dataclass
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

    def holds(self, size: float) -> bool:
        """Whether so much could be taken now."""
        now = self.clock()
        self.left = min(self.capacity, self.left + (now - self._since) * self.capacity / self.seconds)
        self._since = now
        return size <= self.left

    def take(self, size: float) -> bool:
        """Take so much; False, and nothing is taken, if there is less."""
        if not self.holds(size):
            return False
        self.left -= size
        return True


class Quotas:
    """The bytes of request bodies that each node may send in a minute and in a day.

    Enough for a reply every five seconds, for reports of ``report`` bytes, and for 4,000 replies a day.

    Guarantees
    ----------
    * Of no node more is forwarded in any minute than twice its quota of a minute, nor of a day:
      tests/deploy/test_quotas.py::test_no_minute_holds_more_than_two_quotas.
    """

    def __init__(self, report: int, clock: Callable[[], float] = time.monotonic) -> None:
        reply = 2 * report + WRAPPING
        self.a_minute, self.a_day = POLLING + A_MINUTE * reply, A_DAY * reply
        self._clock, self._buckets = clock, dict[str, tuple[Bucket, Bucket]]()

    def exceeded(self, node: str, size: int) -> str:
        """Charge a node for so many bytes. If a quota is too small: that quota, and nothing is charged."""
        if node not in self._buckets:
            self._buckets[node] = (
                Bucket(self.a_minute, 60.0, self._clock),
                Bucket(self.a_day, 86400.0, self._clock),
            )
        minute, day = self._buckets[node]
        if not day.holds(size):
            return f"{self.a_day} bytes a day"
        if not minute.take(size):
            return f"{self.a_minute} bytes a minute"
        day.take(size)
        return ""
