"""The law of the view of a study by check-in, exactly, for few devices: docs/proofs/check-in.md."""

import itertools
import random
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
from shuffling import blanket_share, formula

HIGH, LOW = 3, 1  # odds of a near symbol against another: e^ε₀ = 3
SYMBOLS = 3


def law(near):
    """The law of a symbol whose near set is one symbol."""
    total = HIGH + LOW * (SYMBOLS - 1)
    return [Fraction(HIGH if symbol == near else LOW, total) for symbol in range(SYMBOLS)]


def view_law(near, rounds, come):
    """The law of the rounds' multisets.

    ``near(round, user, past)``: the near symbol, given the past; ``come(user, round)``: its chance to come.
    """
    users, found = 3, defaultdict(Fraction)
    for draws in itertools.product(range(rounds), repeat=users):
        for coming in itertools.product((False, True), repeat=users):
            chance = Fraction(1, rounds**users)
            for user, comes in enumerate(coming):
                share = come(user, draws[user])
                chance *= share if comes else 1 - share
            views = {(): chance}
            for round in range(rounds):
                here = [user for user in range(users) if coming[user] and draws[user] == round]
                after = defaultdict(Fraction)
                for past, mass in views.items():
                    laws = [law(near(round, user, past)) for user in here]
                    for symbols in itertools.product(range(SYMBOLS), repeat=len(here)):
                        part = mass
                        for each, symbol in zip(laws, symbols, strict=True):
                            part *= each[symbol]
                        after[(*past, tuple(sorted(Counter(symbols).items())))] += part
                views = after
            for view, mass in views.items():
                found[view] += mass
    return found


def size(view):
    return sum(count for multiset in view for _, count in multiset)


def blanket_bound(users, ratio):
    """Theorem H1 with the parts of H3, for the mechanism above."""
    parts = [(Fraction(HIGH, LOW), 1, SYMBOLS)]
    return formula(parts, blanket_share(parts), users, ratio)


def divergence(first, second, ratio, count):
    """E_ε of the views with ``count`` reports, given that there are so many."""
    mass = sum(value for view, value in first.items() if size(view) == count)
    found = sum(
        max(Fraction(0), value - ratio * second.get(view, Fraction(0)))
        for view, value in first.items()
        if size(view) == count
    )
    return found / mass


def tables(seed):
    """Adaptive near symbols of all users in all situations, drawn at random; the target's differ."""
    chosen, draw = {}, random.Random(seed)

    def near(target):
        def symbol(round, user, past):
            key = (round, user, past, target if user == 0 else 0)
            if key not in chosen:
                chosen[key] = draw.randrange(SYMBOLS)
            return chosen[key]

        return symbol

    return near(1), near(2)


@pytest.mark.parametrize("seed", range(4))
def test_no_view_exceeds_the_bound_of_the_run(seed):
    """All come: n is the number of devices, however the rounds turn out."""
    first, second = (view_law(near, 2, lambda user, round: Fraction(1)) for near in tables(seed))
    for ratio in (Fraction(1), Fraction(3, 2), Fraction(2)):
        assert divergence(first, second, ratio, 3) <= blanket_bound(3, ratio)


def test_the_bound_is_nearly_reached_and_fails_where_rounds_are_known():
    """Opposite near symbols: close to the bound in a run; if the target always takes round 0, above it."""
    pair = [lambda round, user, past, target=target: target if user == 0 else 2 for target in (0, 1)]
    ratio = Fraction(3, 2)
    first, second = (view_law(near, 1, lambda user, round: Fraction(1)) for near in pair)
    reached = divergence(first, second, ratio, 3)
    assert Fraction(6, 10) * blanket_bound(3, ratio) < reached <= blanket_bound(3, ratio)
    alone = [
        lambda user, round: Fraction(int((user == 0) == (round == 0)))
    ] * 2  # others come in other rounds
    first, second = (view_law(near, 2, come) for near, come in zip(pair, alone, strict=True))
    assert divergence(first, second, ratio, 3) > blanket_bound(3, ratio)


@pytest.mark.parametrize("seed", range(2))
def test_drop_outs_by_user_and_by_round(seed):
    """C1: a factor of the user times one of the round. Given that n reports came, n counts.

    Views without the target do not depend on it, so they only lower the divergence.
    """
    share = {0: Fraction(9, 10), 1: Fraction(1, 2), 2: Fraction(3, 4)}

    def come(user, round):
        return share[user] * (Fraction(2, 3) if round else 1)

    first, second = (view_law(near, 2, come) for near in tables(seed + 10))
    for count in (2, 3):
        for ratio in (Fraction(1), Fraction(2)):
            assert divergence(first, second, ratio, count) <= blanket_bound(count, ratio)
