"""Seeds of noise in repeatable runs."""

import itertools

from sqsgd.training import noise_seed


def test_every_report_has_its_own_seed():
    edges = (0, 1, 2**32, 2**64 - 1)
    seeds = {noise_seed(seed, round, client) for seed, round, client in itertools.product(edges, repeat=3)}
    assert len(seeds) == 4**3
    assert max(seeds) < 2**256
    assert noise_seed(5, 6, 0) % 2**64 == 0  # as seeded_rngs needs it
