"""Public streams never change; private ones never repeat."""

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import reference
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from sqsgd import randomness, secure_rng, seeded_rng
from sqsgd.randomness import EVERYONE, PublicStream, check_rng


def stream(**changes):
    return PublicStream(**{"seed": 1234, "round": 7, "client": 3, "purpose": "coordinates", **changes})


# Golden vectors: they must never change, or clients and servers of different versions disagree.
GOLDEN_WORDS = [2407118504, 3749099056, 2009039583, 1070107523]
GOLDEN_SIGNS = [896391995, 3277670741]
GOLDEN_SUBSET = [29861, 56061, 67170, 90374, 104617]
GOLDEN_LARGE_SUBSET = [0, 1, 2, 3, 6, 7, 9]


def test_golden_public_words():
    assert stream().words(4).tolist() == GOLDEN_WORDS
    assert stream(client=EVERYONE, purpose="signs 0").words(2).tolist() == GOLDEN_SIGNS


def test_golden_subsets():
    assert stream().subset(119850, 5).tolist() == GOLDEN_SUBSET
    assert stream().subset(10, 7).tolist() == GOLDEN_LARGE_SUBSET


def test_the_key_is_the_documented_hash():
    """The construction of docs/wire-format.md, written out with nothing of ours."""
    import hashlib

    message = b"".join(n.to_bytes(8, "little") for n in (1234, 7, 3)) + b"coordinates"
    key = hashlib.blake2b(message, digest_size=32, person=b"sqsgd public").digest()
    keystream = Cipher(algorithms.AES(key), modes.CTR(bytes(15) + b"\2")).encryptor().update(bytes(400_000))
    expected = [int.from_bytes(keystream[i : i + 4], "little") for i in range(0, 40, 4)]
    assert stream().words(10).tolist() == expected
    assert stream().words(100_000).tobytes() == keystream
    pieces = stream()
    taken = [pieces.words(count).tobytes() for count in (3, 1, 5000, 20_000, 10)]
    assert b"".join(taken) == keystream[: 4 * 25_014]


@pytest.mark.parametrize("change", [{"seed": 1235}, {"round": 8}, {"client": 4}, {"purpose": "signs 0"}])
def test_any_change_gives_another_stream(change):
    assert stream().words(4).tolist() != stream(**change).words(4).tolist()


@pytest.mark.parametrize(
    ("dim", "size"), [(1, 1), (5, 5), (100, 1), (100, 49), (100, 50), (100, 51), (100, 99), (3000, 700)]
)
def test_subset_is_the_written_map(dim, size):
    words = iter(stream().words(20_000))
    chosen = stream().subset(dim, size)
    assert chosen.tolist() == reference.subset(words, dim, size)


def test_subsets_are_uniform():
    counts = np.zeros(20)
    for client in range(20_000):
        counts[stream(client=client).subset(6, 3) @ np.array([0, 1, 3]) % 20] += (
            1  # every subset has its cell
        )
    from itertools import combinations

    cells = np.zeros(20)
    for subset in combinations(range(6), 3):
        cells[np.array(subset) @ np.array([0, 1, 3]) % 20] += 1
    seen = cells > 0
    assert stats.chisquare(counts[seen], 1000 * cells[seen]).pvalue > 1e-6


def test_a_key_is_left_in_time(monkeypatch):
    """Before GCM's counter would end, the generator takes another key and goes on."""
    monkeypatch.setattr(randomness, "MOST_BYTES", 40_000)
    rng, again = seeded_rng(1), seeded_rng(1)
    drawn = [rng.take(16_384).tobytes() for _ in range(10)]
    assert len(set(drawn)) == 10
    assert drawn == [again.take(16_384).tobytes() for _ in range(10)]


def test_seeded_is_repeatable_and_says_that_it_protects_nobody():
    assert seeded_rng(7).take(100).tolist() == seeded_rng(7).take(100).tolist()
    assert seeded_rng(7).take(100).tolist() != seeded_rng(8).take(100).tolist()
    assert "protects nobody" in repr(seeded_rng(7))
    assert (seeded_rng(7).protects, secure_rng().protects) == (False, True)


@pytest.mark.parametrize("seed", [-1, 1.5, None, "7", 2**256])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed"):
        seeded_rng(seed)


def test_no_byte_is_handed_out_twice():
    rng = seeded_rng(1)
    taken = b"".join(rng.take(size).tobytes() for size in [1, 7, 8, 100, 4096, 5000, 16384, 20, 9] * 20)
    blocks = [taken[i : i + 16] for i in range(0, len(taken) - 16, 16)]
    assert len(set(blocks)) == len(blocks)
    words = [rng.word() for _ in range(1000)]
    assert len(set(words)) == 1000
    assert all(word.to_bytes(8, "little") not in taken for word in words)


def test_arrays_hold_the_same_words_and_numbers():
    taken = seeded_rng(1).take(8 * 50).view("<u8")
    assert seeded_rng(1).words(50).tolist() == taken.tolist()
    assert seeded_rng(1).uniforms(50).tolist() == [(word >> 11) / 2**53 for word in taken.tolist()]


def test_below_is_uniform_and_rejects():
    rng = seeded_rng(3)
    counts = np.bincount([rng.below(7) for _ in range(70_000)], minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-6
    assert rng.below(1) == 0

    class Scripted(type(rng)):
        def word(self):
            return next(words)

    words = iter([2**64 - 1, 2**64 - 2, 5])
    scripted = Scripted(0)
    assert scripted.below(2**63 + 1) == 5  # a modulo would have taken the first word
    with pytest.raises(ValueError, match="bound"):
        rng.below(0)


def test_threads_draw_different_noise():
    rng, drawn = secure_rng(), []
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        drawn.append(b"".join(rng.take(64).tobytes() for _ in range(500)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocks = [part[i : i + 64] for part in drawn for i in range(0, len(part), 64)]
    assert len(blocks) == 8 * 500 == len(set(blocks))


def _child(rng, queue):
    queue.put((rng.take(32).tobytes(), rng.word()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_draw_different_noise():
    rng = secure_rng()
    rng.take(8), rng.word()  # so that a pool is there to be copied
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
    drawn, barrier = [], threading.Barrier(4)

    def work():
        barrier.wait()
        drawn.extend(rng.take(64).tobytes() for _ in range(20))
        drawn.extend(rng.word().to_bytes(8, "little") for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
    from sqsgd import PrivQuant, exact

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
def test_a_seeded_generator_refuses_to_go_on_in_a_fork():
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


@pytest.mark.parametrize("wrong", [None, 7, np.random.default_rng(1)])
def test_other_generators_are_refused(wrong):
    with pytest.raises(ValueError, match=r"sqsgd\.secure_rng"):
        check_rng(wrong)
