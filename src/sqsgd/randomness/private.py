"""Private randomness: the noise of the privacy guarantee.

``secure_rng()`` is keyed by the operating system, or reads every byte from it (``source="os"``).
``seeded_rng(n)`` is the same generator with a known key, for experiments; it protects nobody.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from functools import lru_cache
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt

from sqsgd.checks import integer
from sqsgd.randomness import Keystream
from sqsgd.randomness.keystream import MOST_BYTES, Bytes, fastest_mode

FIRST_WORDS = 64
"""Words drawn at once for ``word``, which returns the last of them first."""
SEEDED = b"sqsgd seeded"
_U8 = np.dtype("<u8")
_POOL = 1 << 14  # bytes drawn at once for small requests
_OS_BLOCK = 1 << 16  # bytes read from the operating system at once

_generators: weakref.WeakSet[Rng] = weakref.WeakSet()


def _renew_after_fork() -> None:
    for rng in list(_generators):
        rng._after_fork()


os.register_at_fork(after_in_child=_renew_after_fork)


class Rng:
    """A private generator; make one with :func:`secure_rng` or :func:`seeded_rng`.

    Guarantees
    ----------
    * Threads may share it: each byte is returned once. It cannot be copied or pickled, which would repeat
      noise: tests/randomness/test_private.py::test_no_byte_is_handed_out_twice,
      ::test_generators_cannot_be_copied.

    >>> secure_rng().protects, seeded_rng(7).protects
    (True, False)
    """

    protects: bool

    def __init__(self, seed: int | None = None, *, direct: bool = False, key: bytes = b"") -> None:
        """``key``: the first key, where it was drawn elsewhere."""
        self.protects = seed is None
        self._seed, self._keys, self._direct = seed, 0, direct
        self._lock = threading.Lock()
        self._start()
        if key:
            self._keystream = Keystream(key, fastest_mode())
        _generators.add(self)

    def _start(self) -> None:
        """Start with a new key and empty buffers; the process id is set last, once all else is new."""
        if not self._direct:
            self._rekey()
        self._pool = np.empty(0, np.uint8)  # bytes from self._used on are drawn but not yet returned
        self._used = 0
        self._spare: list[int] = []  # words that are drawn but not yet returned
        self._process = os.getpid()

    def _rekey(self) -> None:
        """Take a new key from the operating system, or the next one of the seed."""
        if self._seed is None:
            key = os.urandom(32)
        else:
            message = self._seed.to_bytes(32, "little") + self._keys.to_bytes(8, "little")
            key = hashlib.blake2b(message, digest_size=32, person=SEEDED).digest()
        self._keystream, self._keys, self._left = Keystream(key, fastest_mode()), self._keys + 1, MOST_BYTES

    def _fill(self, target: Bytes) -> None:
        if self._direct:
            for start in range(0, target.size, _OS_BLOCK):
                part = target[start : start + _OS_BLOCK]
                part[:] = np.frombuffer(os.urandom(part.size), np.uint8)
            return
        self._left -= target.size
        if self._left < 0:
            self._rekey()
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
        """A uniform integer below 2^64."""
        with self._lock:
            self._check_process()
            if not self._spare:
                buffer = np.empty(8 * FIRST_WORDS, np.uint8)
                self._fill(buffer)
                self._spare = buffer.view(_U8).tolist()
            return self._spare.pop()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """``count`` uniform integers below 2^64, as an array."""
        return self.take(8 * count).view(_U8)

    def below(self, bound: int) -> int:
        """A uniform integer in 0..bound-1, by rejection; bound is at most 2^64.

        >>> 0 <= seeded_rng(1).below(6) < 6
        True
        """
        bound = integer("bound", bound, 1, 2**64)
        limit = 2**64 - 2**64 % bound
        while (word := self.word()) >= limit:
            pass
        return word % bound

    def uniform(self) -> float:
        """A uniform multiple of 2^-53 in [0, 1); only for rounding before the private step."""
        return (self.word() >> 11) * 2.0**-53

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """``count`` numbers like ``uniform``, as an array."""
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, np.float64)

    def __repr__(self) -> str:
        if self.protects:
            return "secure_rng(source='os')" if self._direct else "secure_rng()"
        return f"seeded_rng({self._seed})  # for experiments: protects nobody"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private generator cannot be copied or pickled: a copy would repeat its noise")

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()


def secure_rng(source: Literal["keystream", "os"] = "keystream") -> Rng:
    """A private generator for real data.

    ``"keystream"``: AES-256 in counter mode under a key from the operating system. The stated ε then holds
    against whoever cannot tell AES from random bits: computational differential privacy. ``"os"``: every byte
    is read from the operating system and nothing is derived, so that no assumption about AES is made here;
    whether its bytes are more than computationally random is up to the operating system. It reads 0.4 GB/s
    where the keystream has 10 GB/s: an encode of the default run takes 106 µs instead of 82 µs, one of 2^20
    coordinates 11 ms instead of 1.5 ms.

    Guarantees
    ----------
    * With ``"os"``, every byte handed out was returned by ``os.urandom`` in this process, and once:
      tests/randomness/test_private.py::test_every_byte_comes_from_the_operating_system.
    * Forked processes and threads never draw the same noise:
      tests/randomness/test_private.py::test_forked_processes_draw_different_noise,
      ::test_threads_draw_different_noise and
      ::test_threads_of_a_forked_process_never_repeat_the_parents_noise.

    >>> secure_rng()
    secure_rng()
    """
    if source not in ("keystream", "os"):
        raise ValueError(f"source = {source!r} must be 'keystream' or 'os'")
    return Rng(direct=source == "os")


@lru_cache(maxsize=1)
def idle_rng() -> Rng:
    """A generator whose numbers are discarded, for branches that need none but must take as long."""
    return Rng()


def seeded_rng(seed: int) -> Rng:
    """A reproducible generator for experiments. It protects nobody: the seed determines the noise.

    >>> seeded_rng(7)
    seeded_rng(7)  # for experiments: protects nobody
    """
    return Rng(integer("seed", seed, 0, 2**256 - 1))


def check_rng(rng: object) -> Rng:
    """The argument, if it is a private generator."""
    if not isinstance(rng, Rng):
        raise ValueError(
            f"rng = {rng!r} must be a private generator: sqsgd.secure_rng(), or seeded_rng(n) in experiments"
        )
    return rng
