"""Many private generators at once are as many single ones, and serve once."""

import copy
import os
import pickle

import numpy as np
import pytest

from sqsgd import seeded_rng
from sqsgd.kernels import keystreams
from sqsgd.randomness import ranks_of, secure_rngs, seeded_rngs, uniforms_of
from sqsgd.randomness.private import FIRST_WORDS

NUMBERS = np.array([0, 1, 77, 2**64 - 1], np.uint64)
BASE = (5 << 128) | (3 << 64)


@pytest.fixture(params=["with AES instructions", "without"])
def _both_ways(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(keystreams, "HARDWARE", False)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("make", [lambda: seeded_rngs(BASE, NUMBERS), lambda: secure_rngs(4)])
@pytest.mark.parametrize(("first", "later"), [(1, 1), (2, 7), (3, 400), (FIRST_WORDS, 5000)])
def test_words_are_those_of_single_generators(make, first, later):
    rngs = make()
    words, more = rngs.words(first), rngs.later(later)
    for i in range(4):
        rng = rngs[i]
        assert [rng.word() for _ in range(first)] == words[i].tolist()
        assert np.array_equal(rng.words(later), more[i])


def test_seeds_are_those_of_seeded_rng():
    rngs = seeded_rngs(BASE, NUMBERS)
    assert not rngs.protects
    for number, rng, words in zip(NUMBERS, rngs, rngs.words(5), strict=True):
        alone = seeded_rng(BASE + int(number))
        assert [alone.word() for _ in range(5)] == words.tolist() == [rng.word() for _ in range(5)]


def test_secure_generators_differ_and_say_so():
    one, other = secure_rngs(3), secure_rngs(3)
    assert one.protects
    assert all(rng.protects for rng in one)
    assert len({*one.words(1).ravel().tolist(), *other.words(1).ravel().tolist()}) == 6


def test_generators_serve_one_batch():
    rngs = secure_rngs(6)
    rngs[:3].claim()
    rngs[3:].claim()
    for again in (rngs, rngs[2:4], rngs[5:]):
        with pytest.raises(RuntimeError, match="noise would repeat"):
            again.claim()


def test_a_child_process_does_not_use_its_parents_generators():
    rngs = secure_rngs(2)
    child = os.fork()
    if child == 0:
        try:
            rngs[:1].claim()
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_they_cannot_be_copied(copied):
    with pytest.raises(TypeError, match="repeat their noise"):
        copied(secure_rngs(2))


@pytest.mark.parametrize("base", [1, -(2**64), 2**256])
def test_a_base_that_would_mix_up_seeds_is_refused(base):
    with pytest.raises(ValueError, match=r"multiple of 2\^64"):
        seeded_rngs(base, NUMBERS)


def beginning_with(*words):
    """A generator whose first words are given."""
    rng = seeded_rng(1)
    rng._spare = list(reversed(words))
    return rng


@pytest.mark.parametrize("bound", [1, 2, 3, 255, 4096, 7680, 2**33 - 1, 2**63 - 25, 2**63])
def test_ranks_are_those_of_below(bound):
    """For words around the limit of rejection; a rejected word is said to be."""
    limit = 2**64 - 2**64 % bound
    words = [0, 1, bound - 1, bound, limit - 1, min(limit, 2**64 - 1), 2**64 - 1]
    ranks, accepted = ranks_of(np.array(words, np.uint64), bound)
    for word, rank, fine in zip(words, ranks.tolist(), accepted.tolist(), strict=True):
        rng = beginning_with(word, 0)
        found = rng.below(bound)
        assert fine == (len(rng._spare) == 1)
        assert not fine or found == rank


def test_uniforms_are_those_of_uniform():
    words = [0, 1, 2047, 2048, 2**63, 2**64 - 1]
    expected = [beginning_with(word).uniform() for word in words]
    assert uniforms_of(np.array(words, np.uint64)).tolist() == expected
