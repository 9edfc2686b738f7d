"""Which scheme a client that keeps nothing had best use."""

import pytest

from sqsgd import make_scheme
from sqsgd.planner import plan
from sqsgd.schemes.stateless import stateless_choices


@pytest.mark.parametrize(
    ("dim", "epsilon", "bits", "best"),
    [(3920, 8.0, 512, "privunit-index"), (3920, 2.0, 16, "privunit-index"), (3920, 400.0, 4096, None)],
)
def test_the_best_stateless_scheme_is_the_one_with_the_least_error(dim, epsilon, bits, best):
    ways = stateless_choices(dim=dim, epsilon=epsilon, bits=bits)
    assert len(ways) >= 2
    for way in ways:
        scheme = make_scheme(way.name, dim=dim, epsilon=epsilon, bits=bits)
        assert not scheme.residual
        assert (way.nmse, way.message_bytes) == (scheme.nmse, scheme.bits // 8)
    assert [way.nmse for way in ways] == sorted(way.nmse for way in ways)
    assert ways[0].name == best if best else ways[0].name != "privunit-index"
    assert plan(dim=dim, epsilon=epsilon, bits=bits).stateless == tuple(ways)
