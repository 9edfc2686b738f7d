"""Private generators never repeat their noise."""

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sqsgd import secure_rng, seeded_rng
from sqsgd.audit.noise import key_of
from sqsgd.core import random


def test_seeded_is_repeatable_and_says_that_it_protects_nobody():
    assert seeded_rng(7).take(100).tolist() == seeded_rng(7).take(100).tolist()
    assert seeded_rng(7).take(100).tolist() != seeded_rng(8).take(100).tolist()
    assert "protects nobody" in repr(seeded_rng(7))
    assert (seeded_rng(7).protects, secure_rng().protects) == (False, True)


def at_once(count, work):
    """In so many threads, which begin together."""
    barrier = threading.Barrier(count)
    threads = [threading.Thread(target=lambda: (barrier.wait(), work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_draw_different_noise():
    rng, drawn = secure_rng(), []
    at_once(8, lambda: drawn.append(b"".join(rng.take(64).tobytes() for _ in range(500))))
    blocks = [part[i : i + 64] for part in drawn for i in range(0, len(part), 64)]
    assert len(blocks) == 8 * 500 == len(set(blocks))


def _child(rng, queue):
    queue.put((rng.take(32).tobytes(), rng.word()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("make", [secure_rng, lambda: secure_rng("os"), lambda: secure_rng().child()])
def test_forked_processes_draw_different_noise(make):
    rng = make()
    rng.take(8), rng.word()  # so that there is a pool to copy
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    children = [fork.Process(target=_child, args=(rng, queue)) for _ in range(3)]
    for child in children:
        child.start()
    drawn = [queue.get(timeout=30) for _ in children] + [(rng.take(32).tobytes(), rng.word())]
    for child in children:
        child.join()
    assert len({taken for taken, _ in drawn}) == len({word for _, word in drawn}) == 4


def _threaded_child(rng, queue):
    drawn = []

    def work():
        drawn.extend(rng.take(64).tobytes() for _ in range(20))
        drawn.extend(rng.word().to_bytes(8, "little") for _ in range(20))

    at_once(4, work)
    queue.put(drawn)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_of_a_forked_process_never_repeat_the_parents_noise(monkeypatch):
    """The child's threads start drawing at once: none may see the parent's pool, words or keystream.

    A slow operating system leaves time for the other threads while one takes the new key.
    """
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: time.sleep(0.02) or urandom(size))
    fork = multiprocessing.get_context("fork")
    for _ in range(5):
        rng = secure_rng()
        rng.take(8), rng.word()
        queue = fork.Queue()
        child = fork.Process(target=_threaded_child, args=(rng, queue))
        child.start()
        drawn = queue.get(timeout=30)
        child.join()
        parent = [rng.take(64).tobytes() for _ in range(100)] + [
            rng.word().to_bytes(8, "little") for _ in range(63)
        ]
        assert [len(part) for part in drawn].count(64) == 80
        assert len(set(drawn)) == len(drawn) == 160
        assert not set(drawn) & set(parent)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_probabilities_are_computed_does_not_hang():
    from sqsgd import PrivQuant
    from sqsgd._internal import exact

    holding, done = threading.Event(), threading.Event()

    def hold():
        with exact.precision(500):
            holding.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(30)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os._exit(42 if PrivQuant(8, 4, 2.0).scale > 0 else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    done.set()
    thread.join()
    assert code == 42


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_seeded_generator_fails_after_a_fork():
    rng = seeded_rng(5)
    pid = os.fork()
    if pid == 0:  # the child must not run pytest's own clean-up
        try:
            rng.take(8)
        except RuntimeError:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_generators_cannot_be_copied(duplicate):
    with pytest.raises(TypeError, match="repeat its noise"):
        duplicate(secure_rng())


@pytest.mark.parametrize("make", [secure_rng, lambda: secure_rng().child(), lambda: seeded_rng(1)])
def test_a_generator_is_not_a_sequence(make):
    """A list of generators, indexed or zipped with vectors in each round, would begin again each time."""
    for use in (iter, len, next, reversed, lambda rng: rng[0], lambda rng: zip([1.0], rng, strict=False)):
        with pytest.raises(TypeError):
            use(make())


def test_no_generator_that_protects_has_a_given_key():
    with pytest.raises(ValueError, match="from the operating system"):
        random.Rng(key=bytes(32))


@pytest.mark.parametrize("make", [secure_rng, lambda: secure_rng().child(), lambda: seeded_rng(1)])
def test_a_new_key_continues_with_other_noise(make, monkeypatch):
    """At its limit a key is replaced by one from the operating system, or the next one of the seed."""
    monkeypatch.setattr(random, "MOST_BYTES", 4096)
    rng, keys = make(), []
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: keys.append(urandom(size)) or keys[-1])
    blocks = [rng.take(2000).tobytes()[:1984] for _ in range(64)]
    pieces = [block[at : at + 16] for block in blocks for at in range(0, 1984, 16)]
    assert len(set(pieces)) == len(pieces)
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)
    assert (len(keys) > 5) == rng.protects


def test_every_byte_comes_from_the_operating_system(monkeypatch):
    """With source="os" nothing is derived: what is handed out is what os.urandom returned, each byte once."""
    read, urandom = [], os.urandom

    def watched(size):
        read.append(urandom(size))
        return read[-1]

    monkeypatch.setattr(os, "urandom", watched)
    rng = secure_rng(source="os")
    assert not read
    taken = [rng.take(size).tobytes() for size in (1, 24, 4096, 5000, 200_000)]
    words = [rng.word().to_bytes(8, "little") for _ in range(100)]
    everything = b"|".join(read)
    for part in (*taken[:4], *words):
        assert part in everything
    assert taken[4] in b"".join(read)  # in several blocks
    assert len(set(words)) == 100
    assert sum(map(len, read)) < 300_000
    assert rng.protects
    assert repr(rng) == "secure_rng(source='os')"


def test_an_interrupted_fill_hands_out_nothing(monkeypatch):
    """After Ctrl-C in the middle of a fill, no bytes that were never drawn are returned as noise."""
    rng = seeded_rng(5)
    rng.take(8)

    def interrupted(self, target):
        target[:] = 0xAA
        raise KeyboardInterrupt

    def take_until_interrupted():
        while True:
            rng.take(64)

    with monkeypatch.context() as patch:
        patch.setattr(random.Rng, "_fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            take_until_interrupted()
    assert all(bytes(rng.take(64)) != b"\xaa" * 64 for _ in range(600))


class Scripted(random.Rng):
    """Hands out given words."""

    def __init__(self, *words):
        super().__init__(0)
        self.left = list(words)

    def word(self):
        return self.left.pop(0)

    def words(self, count):
        return np.array([self.word() for _ in range(count)], np.uint64)


@pytest.mark.parametrize("bound", [1, 2, 3, 255, 4096, 7680, 2**33 - 1, 2**62 + 1, 2**63 - 25])
def test_many_numbers_below_bounds_take_further_words_for_rejected_ones(bound):
    """For words around the limit of rejection, each is used or replaced as ``below`` does."""
    limit = 2**64 - 2**64 % bound
    for word in (0, 1, bound - 1, bound, limit - 1, min(limit, 2**64 - 1), 2**64 - 1):
        alone, many = Scripted(word, 2**64 - 1, 5), Scripted(7, word, 2**64 - 1, 5)
        expected = alone.below(bound)
        assert many.below_many(np.array([8, bound])).tolist() == [7, expected]
        assert many.left == alone.left
    with pytest.raises(ValueError, match="bound"):
        Scripted(1).below(0)


@pytest.mark.parametrize("make", [secure_rng, lambda: secure_rng("os"), lambda: seeded_rng(3)])
def test_children_draw_other_noise_than_their_parent(make):
    rng = make()
    everyone = [rng, rng.child(), rng.child(), rng.child().child()]
    with ThreadPoolExecutor(4) as pool:
        everyone += pool.map(lambda _: rng.child(), range(200))
    assert len({word for each in everyone for word in each.words(50).tolist()}) == 204 * 50
    assert {each.protects for each in everyone} == {rng.protects}
    assert {each._direct for each in everyone} == {rng._direct}


@pytest.mark.parametrize("source", ["keystream", "os"])
def test_a_childs_key_is_the_operating_systems(source):
    """All of its 256 bits decide the draws; nothing of its parent does."""
    parent = secure_rng(source)
    found = key_of(parent.child)
    assert (found.read, found.bits) == ((32, 256) if source == "keystream" else (found.read, 512))
    assert found.repeats


def test_long_keystreams_are_the_same():
    """GCM encrypts with the same counter blocks as CTR, from block 2 on; pieces of any size fit together."""
    key, whole = bytes(range(32)), np.empty(1 << 20, np.uint8)
    random.Keystream(key).fill(whole)
    keystream, start = random.Keystream(key, long=True), 0
    for size in (0, 5, 20, 1, 30, 4096, 70_000, 1 << 19):
        part = np.empty(size, np.uint8)
        keystream.fill(part)
        assert np.array_equal(part, whole[start : start + size])
        start += size
