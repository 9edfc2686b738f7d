"""Two kinds of randomness that never mix. Every bit comes from the package ``cryptography`` or the system.

**Private** generators draw the noise of the privacy guarantee. **Public** streams give the rotation signs and
the coordinates that the server and the clients must agree on: docs/wire-format.md.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import weakref
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sqsgd._internal.checks import integer

Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint64]

MOST_BYTES = 1 << 35
"""A private generator takes a new key after this many bytes: docs/proofs/index.md."""
EVERYONE = 2**64 - 1
"""The client number of a public stream that all clients of a round share."""
_U4, _U8 = np.dtype("<u4"), np.dtype("<u8")
_ZEROS = np.zeros(1 << 18, np.uint8)
_POOL = 1 << 14  # bytes drawn at once for small requests
_SPARE = 64  # words drawn at once for ``word``
_OS_BLOCK = 1 << 16  # bytes read from the operating system at once


class Keystream:
    """AES-256 in counter mode as a source of bytes: the encryption of zeros.

    ``long``: the first block is zero, and OpenSSL's GCM encrypts from block 2 on. That is the same keystream,
    but newer processors make it twice as fast: tests/core/test_private.py::test_long_keystreams_are_the_same.
    """

    def __init__(
        self, key: bytes | algorithms.AES256, first_block: bytes = bytes(16), *, long: bool = False
    ) -> None:
        cipher = algorithms.AES256(key) if isinstance(key, bytes) else key
        self._encryptor = Cipher(cipher, modes.CTR(first_block)).encryptor()
        self._head = self._encryptor.update(bytes(32)) if long else b""
        if long:
            self._encryptor = Cipher(cipher, modes.GCM(bytes(12))).encryptor()

    def fill(self, target: Bytes) -> None:
        """Overwrite an array with the next bytes."""
        if self._head:
            first, self._head = self._head[: target.size], self._head[target.size :]
            target[: len(first)] = np.frombuffer(first, np.uint8)
            target = target[len(first) :]
        for start in range(0, target.size, _ZEROS.size):
            part = target[start : start + _ZEROS.size]
            self._encryptor.update_into(_ZEROS.data[: part.size], part.data)


# ---------------------------------------------------------------- private

_generators: weakref.WeakSet[Rng] = weakref.WeakSet()


def _renew_after_fork() -> None:
    for rng in list(_generators):
        rng._after_fork()


os.register_at_fork(after_in_child=_renew_after_fork)


def _digest(message: bytes) -> bytes:
    """Return the key of a seed, and the next key after a key of a seeded generator."""
    return hashlib.blake2b(message, digest_size=32, person=b"sqsgd seeded").digest()


class Rng:
    """A generator of private random words. To create one, call :func:`secure_rng` or :func:`seeded_rng`.

    Raises:
        RuntimeError: If a seeded generator is used in a forked process, which would repeat its noise.

    Guarantees
    ----------
    * Threads may share it: each byte is returned once. It cannot be copied, pickled or indexed, which would
      repeat noise: tests/proofs/test_proof_sampler.py::test_no_word_of_the_keystream_is_handed_out_twice,
      tests/core/test_private.py::test_generators_cannot_be_copied, ::test_a_generator_is_not_a_sequence.
    * Two processes never draw the same noise from it, nor from its children:
      tests/core/test_private.py::test_forked_processes_draw_different_noise.

    >>> secure_rng().protects, seeded_rng(7).protects
    (True, False)
    """

    protects: bool

    def __init__(self, seed: int | None = None, *, direct: bool = False, key: bytes = b"") -> None:
        if seed is None and key:
            raise ValueError("a generator that protects takes its key from the operating system")
        self.protects = seed is None
        self._seed, self._direct, self._key = seed, direct, key
        if seed is not None and not key:
            self._key = _digest(seed.to_bytes(32, "little"))
        self._lock = threading.Lock()
        self._start()
        _generators.add(self)

    def _start(self) -> None:
        if not self._direct:
            self._rekey(self._key or os.urandom(32))
        self._pool = np.empty(0, np.uint8)  # bytes from self._used on are drawn but not yet returned
        self._used = 0
        self._spare: list[int] = []  # words that are drawn but not yet returned
        self._process = os.getpid()  # last, once all else is new

    def _rekey(self, key: bytes) -> None:
        self._keystream, self._left = Keystream(key, long=True), MOST_BYTES
        self._key = b"" if self._seed is None else key

    def _fill(self, target: Bytes) -> None:
        if self._direct:
            for start in range(0, target.size, _OS_BLOCK):
                part = target[start : start + _OS_BLOCK]
                part[:] = np.frombuffer(os.urandom(part.size), np.uint8)
            return
        self._left -= target.size
        if self._left < 0:
            self._rekey(os.urandom(32) if self._seed is None else _digest(self._key))
        self._keystream.fill(target)

    def _after_fork(self) -> None:
        """Replace the parent's keystream by a new key, in the child and before it has other threads."""
        self._lock = threading.Lock()  # the parent's may be held by a thread that does not exist here
        if self._seed is None:
            self._start()

    def _check_process(self) -> None:
        """Under the lock: after a fork that bypassed Python, take a new key, or fail if seeded."""
        if self._process == os.getpid():
            return
        if self._seed is not None:
            raise RuntimeError(
                f"{self!r} was created in another process: after a fork both would draw the same noise. "
                "Create a seeded_rng with a different seed in each process."
            )
        self._start()

    def child(self) -> Rng:
        """A generator for one part of a batch: it has another key, which a seeded one draws from itself."""
        if self._seed is None:
            return Rng(direct=self._direct)
        return Rng(self._seed, key=self.take(32).tobytes())

    def fill(self, target: Bytes) -> None:
        """Overwrite a one-dimensional array of bytes with uniform random bytes."""
        with self._lock:
            self._check_process()
            self._fill(target)

    def take(self, count: int) -> Bytes:
        """``count`` uniform random bytes, returned once, as an array aligned to eight bytes."""
        if count > _POOL // 4:
            target = np.empty(count, np.uint8)
            self.fill(target)
            return target
        with self._lock:
            self._check_process()
            start = self._used
            if start + count > self._pool.size:
                # A new array, because callers hold parts of the old one; filled before it is used, because
                # an interrupt may end the fill.
                pool = np.empty(_POOL, np.uint8)
                self._fill(pool)
                self._pool, start = pool, 0
            self._used = (start + count + 7) & ~7
            return self._pool[start : start + count]

    def word(self) -> int:
        """Draw a uniform integer below 2^64.

        Raises:
            RuntimeError: If a seeded generator is used in a forked process.
        """
        with self._lock:
            self._check_process()
            if not self._spare:
                buffer = np.empty(8 * _SPARE, np.uint8)
                self._fill(buffer)
                self._spare = buffer.view(_U8).tolist()
            return self._spare.pop()

    def words(self, count: int) -> Words:
        """Draw several uniform integers below 2^64.

        Args:
            count: The number of integers.

        Returns:
            An array of unsigned 64-bit integers.

        Raises:
            RuntimeError: If a seeded generator is used in a forked process.
        """
        return self.take(8 * count).view(_U8)

    def below(self, bound: int) -> int:
        """Draw a uniform integer below a bound using rejection sampling.

        Args:
            bound: The upper bound, which must be in 1..2^64.

        Returns:
            An integer in 0..bound-1.

        Raises:
            ValueError: If the bound is out of range.
            RuntimeError: If a seeded generator is used in a forked process.
        """
        bound = integer("bound", bound, 1, 2**64)
        limit = 2**64 - 2**64 % bound
        while (word := self.word()) >= limit:
            pass
        return word % bound

    def below_many(self, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """A uniform integer below each of the bounds, which are positive. Rejected words are drawn again."""
        below, words = bounds.astype(np.uint64), self.words(bounds.size)
        uneven = np.negative(below) % below  # 2^64 mod bound: as many words are skipped, the largest ones
        while (rejected := np.flatnonzero((uneven > 0) & (words >= np.negative(uneven)))).size:
            words[rejected] = self.words(rejected.size)
        return (words % below).astype(np.int64)

    def uniform(self) -> float:
        """Draw a uniform multiple of 2^-53 in [0, 1).

        It should only be used for rounding before the private step, or for mechanisms which are private in
        real arithmetic.

        Raises:
            RuntimeError: If a seeded generator is used in a forked process.
        """
        return (self.word() >> 11) * 2.0**-53

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Draw several numbers with the same distribution as ``uniform``.

        Args:
            count: The number of values.

        Returns:
            An array of floating-point numbers.

        Raises:
            RuntimeError: If a seeded generator is used in a forked process.
        """
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, np.float64)

    def __repr__(self) -> str:
        if self.protects:
            return "secure_rng(source='os')" if self._direct else "secure_rng()"
        return f"seeded_rng({self._seed})  # for experiments: protects nobody"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private generator cannot be copied or pickled: a copy would repeat its noise")


def secure_rng(source: Literal["keystream", "os"] = "keystream") -> Rng:
    """Create a private generator for real data.

    Args:
        source: ``"keystream"``: AES-256 in counter mode under a key from the operating system; the stated ε
            holds against everyone who cannot distinguish AES from random bits. ``"os"``: every byte comes
            from the operating system, whose generator is computational too (ChaCha20 on Linux); encoding
            takes up to seven times as long.

    Returns:
        A generator that nobody else can reproduce.

    Raises:
        ValueError: If the source is unknown.

    Guarantees
    ----------
    * With ``"os"``, every byte handed out was returned by ``os.urandom`` in this process, and once:
      tests/core/test_private.py::test_every_byte_comes_from_the_operating_system.
    * Forked processes and threads never draw the same noise:
      tests/core/test_private.py::test_threads_of_a_forked_process_never_repeat_the_parents_noise.

    >>> secure_rng()
    secure_rng()
    """
    if source not in ("keystream", "os"):
        raise ValueError(f"source = {source!r} must be 'keystream' or 'os'")
    return Rng(direct=source == "os")


@lru_cache(maxsize=1)
def idle_rng() -> Rng:
    """Return a generator whose numbers are discarded, for branches that need none but must take as long."""
    return Rng()


def seeded_rng(seed: int) -> Rng:
    """Return a reproducible generator for experiments. It does not protect anyone: the seed determines the
    noise.

    Args:
        seed: An integer from 0 to 2^256 - 1.

    Returns:
        A generator that draws the same words for the same seed.

    Raises:
        ValueError: If the seed is negative or larger than 2^256 - 1.

    >>> seeded_rng(7)
    seeded_rng(7)  # for experiments: protects nobody
    """
    return Rng(integer("seed", seed, 0, 2**256 - 1))


def check_rng(rng: object) -> Rng:
    """Return the argument, if it is a private generator."""
    if not isinstance(rng, Rng):
        raise ValueError(
            f"rng = {rng!r} must be a private generator: sqsgd.secure_rng(), or seeded_rng(n) in experiments"
        )
    return rng


@lru_cache(maxsize=64)
def _cipher(seed: int, round: int, purpose: str) -> algorithms.AES256:
    message = struct.pack("<QQ", seed, round) + purpose.encode("ascii")
    return algorithms.AES256(hashlib.blake2b(message, digest_size=32, person=b"sqsgd public").digest())


class PublicStream:
    """The public words of (seed, round, client, purpose); the same on every machine and in every version.

    The key is BLAKE2b-256, personalised with ``sqsgd public``, of the little-endian 64-bit integers seed and
    round, then the purpose in ASCII. The words are AES-256-CTR under this key, read as little-endian words.
    The first counter block is the client's number and zero, as big-endian 64-bit integers.

    >>> PublicStream(seed=1, round=0, client=3, purpose="signs").words(2).tolist()
    [533753956, 1670936714]
    """

    def __init__(self, *, seed: int, round: int, client: int, purpose: str) -> None:
        self._keystream = Keystream(_cipher(seed, round, purpose), client.to_bytes(8, "big") + bytes(8))

    def words(self, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return the next ``count`` 32-bit little-endian words."""
        buffer = np.empty(4 * count, np.uint8)
        self._keystream.fill(buffer)
        return buffer.view(_U4)

    def subset(self, dim: int, size: int) -> npt.NDArray[np.int64]:
        """A uniform ``size``-subset of 0..dim-1, sorted. Beyond half of dim, the complement is drawn."""
        from sqsgd._internal.kernels.sampling import mark, marked

        drawn = min(size, dim - size)
        marks = np.zeros((dim + 63) // 64, np.uint64)
        missing = drawn
        while missing:
            # The expected number and some more: words are used in order, so it does not change the result.
            words = self.words(missing + (missing * drawn) // dim + 32)
            missing = mark(marks, np.uint64(dim), missing, words)
        chosen = np.empty(size, np.int64)
        marked(marks, dim, size == drawn, chosen)
        return chosen


def many_words(*, seed: int, round: int, clients: Words, purpose: str, count: int) -> Words:
    """The first ``count`` 64-bit words of each client's stream, one row each: all counter blocks at once."""
    blocks = np.empty((clients.size, -(-count // 2), 2), ">u8")
    blocks[..., 0], blocks[..., 1] = clients[:, None], np.arange(blocks.shape[1])
    stream = np.empty(blocks.nbytes + 16, np.uint8)  # the last block: room that the interface asks for
    encryptor = Cipher(_cipher(seed, round, purpose), modes.ECB()).encryptor()  # noqa: S305  # counter mode
    encryptor.update_into(blocks.data.cast("B") if blocks.size else b"", stream.data)
    rows = stream[: blocks.nbytes].view(_U8).reshape(clients.size, 2 * blocks.shape[1])
    return np.ascontiguousarray(rows[:, :count])
