"""docs/proofs: composition with client state, and the ledger as a filter, on random small interactions."""

import itertools
import random
from fractions import Fraction

import pytest

OUTPUTS, INPUTS = 3, 3


def random_kernel(rng, gain):
    """Laws over the outputs for each input whose ratios are at most ``gain``, a whole number."""
    while True:
        rows = [[rng.randint(1, 12) for _ in range(OUTPUTS)] for _ in range(INPUTS)]
        laws = [[Fraction(part, sum(row)) for part in row] for row in rows]
        if all(
            one[z] <= gain * other[z]
            for one, other in itertools.product(laws, repeat=2)
            for z in range(OUTPUTS)
        ):
            return laws


class Interaction:
    """A server that chooses among mechanisms by all it has seen, and a client with private, random state."""

    def __init__(self, seed, cap):
        self.rng = random.Random(seed)
        self.gains = [2, 3, 4]
        self.kernels = [random_kernel(self.rng, gain) for gain in self.gains]
        self.tables = {}
        self.cap = cap

    def choice(self, *key):
        """A random but fixed function of its arguments."""
        if key not in self.tables:
            self.tables[key] = self.rng.randrange(3)
        return self.tables[key]

    def probability(self, data, transcript):
        """P(transcript | data), over all paths of the state, and the product of the gains that were spent.

        The state after a round depends on the data, the state, the message and a coin of the client.
        """
        paths, spent = {0: Fraction(1)}, 1
        for t, message in enumerate(transcript):
            task = self.choice("task", transcript[:t])
            if spent * self.gains[task] > self.cap:
                if message is not None:
                    return Fraction(0), spent
                continue
            if message is None:
                return Fraction(0), spent
            spent *= self.gains[task]
            after = {}
            for state, chance in paths.items():
                x = self.choice("input", data, state, task)
                for coin in range(2):
                    new = self.choice("state", data, state, message, coin)
                    share = chance * self.kernels[task][x][message] / 2
                    after[new] = after.get(new, Fraction(0)) + share
            paths = after
        return sum(paths.values()), spent


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cap", [10**9, 12, 4])
def test_no_server_learns_more_than_the_sum_or_the_cap(seed, cap):
    """Theorems C1 and F3: gains e^ε multiply along a transcript, and never beyond the cap e^E."""
    interaction, rounds = Interaction(seed, cap), 4
    totals = [Fraction(0)] * 2
    refused = False
    for transcript in itertools.product((None, *range(OUTPUTS)), repeat=rounds):
        one, spent = interaction.probability("D", transcript)
        other, also = interaction.probability("D'", transcript)
        assert (one == 0) == (other == 0)
        if one:
            assert spent == also <= cap
            assert max(one / other, other / one) <= spent
            refused = refused or None in transcript
        totals = [totals[0] + one, totals[1] + other]
    assert totals == [1, 1]
    assert refused == (cap < 10**9)


def test_a_refusal_that_depends_on_data_is_not_covered():
    """Lemma F2 is needed: a client that stays silent because of its data reveals it."""

    class Silent(Interaction):
        def probability(self, data, transcript):
            chance, spent = super().probability(data, transcript)
            return (Fraction(transcript == (None,)), 1) if data == "D'" else (chance, spent)

    silent = Silent(0, 10**9)
    assert silent.probability("D", (None,))[0] == 0
    assert silent.probability("D'", (None,))[0] == 1
