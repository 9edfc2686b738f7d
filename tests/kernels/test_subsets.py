"""The kernels of signed subsets, against plain twins."""

import numpy as np
import pytest
from sqsgd.kernels.sampling import draw_codes

from sqsgd.kernels.subsets import expand_subset, fold_subset, spread


def slow_draw(near, count, size, right, wrong, words):
    """draw_codes in plain Python; None if the words do not suffice."""
    words, near = iter(words), list(near)

    def below(bound):
        for word in words:
            if word < 2**64 - 2**64 % bound:
                return word % bound
        return None

    for i in range(min(len(near), count)):
        step = below(len(near) - i)
        if step is None:
            return None
        near[i], near[i + step] = near[i + step], near[i]
    taken, outside = {code >> 1 for code in near}, []
    while len(outside) < min(count, size - len(near)):
        code = below(2 * size)
        if code is None:
            return None
        if code >> 1 not in taken:
            taken.add(code >> 1)
            outside.append(code)
    return [*near[:right], *(code ^ 1 for code in near[right : right + wrong]), *outside][:count]


@pytest.mark.parametrize("size", [5, 64, 100])
def test_draws_are_those_of_the_plain_twin(size):
    numbers = np.random.default_rng(size)
    for _ in range(200):
        near_count, count = int(numbers.integers(1, size)), int(numbers.integers(1, size))
        fewest = max(0, near_count + count - size)
        hits = int(numbers.integers(fewest, min(near_count, count) + 1))
        right = int(numbers.integers(0, hits + 1))
        near = 2 * numbers.choice(size, near_count, replace=False) + numbers.integers(0, 2, near_count)
        words = numbers.integers(0, 2**64, int(numbers.integers(1, 12 * size)), dtype=np.uint64)
        words[numbers.random(words.size) < 0.1] = 2**64 - 1  # rejected for most bounds
        codes, marks = np.zeros(count, np.uint32), np.zeros(-(-size // 64), np.uint64)
        done = draw_codes(near.astype(np.uint32), codes, size, right, hits - right, words, marks)
        expected = slow_draw(near.tolist(), count, size, right, hits - right, words.tolist())
        assert done == (expected is not None)
        if done:
            assert codes.tolist() == expected


def test_folding_and_expanding_are_inverse():
    numbers = np.random.default_rng(1)
    for size, count in ((1, 1), (7, 3), (70, 33), (5000, 200)):
        places = np.sort(numbers.choice(size, count, replace=False))
        codes = (2 * places + numbers.integers(0, 2, count)).astype(np.uint32)
        limbs, back = np.zeros(128, np.uint32), np.zeros(count, np.uint32)
        fold_subset(codes, size, limbs)
        assert expand_subset(limbs.copy(), size, back)
        assert back.tolist() == codes.tolist()
        limbs[-1] = 1  # far beyond any subset's number
        assert not expand_subset(limbs, size, back)


def test_codes_are_spread_with_their_signs():
    """Codes beyond the vector write nothing, even where memory would follow."""
    room = np.zeros(8)
    spread(np.array([1, 4, 8, 9, 2**32 - 1], np.uint32), 2.5, room[:4])
    assert room.tolist() == [-2.5, 0, 2.5, 0, 0, 0, 0, 0]
