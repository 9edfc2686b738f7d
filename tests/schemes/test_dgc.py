"""DGC: the largest coordinates arrive exactly, and none twice."""

import numpy as np
import pytest
from cases import task, unit_vector
from clear import measured

from sqsgd import Aggregate, MalformedReport, codec, make_scheme, seeded_rng
from sqsgd.schemes.dgc import Largest


@pytest.mark.parametrize(("dim", "bits", "model"), [(300, 512, 0.01), (5000, 2048, 0.002), (64, 2048, 0.0)])
def test_the_error_of_the_largest_is_the_predicted_one(dim, bits, model):
    """The formula is for many coordinates: it is 1 % off at 12 of 300."""
    scheme = make_scheme("dgc", dim=dim, bits=bits)
    mean, deviation = measured(scheme, 500)
    assert abs(mean - scheme.nmse) <= 3 * deviation + model


@pytest.mark.parametrize("count", [1, 7, 299, 300])
def test_the_largest_coordinates_arrive_exactly(count):
    scheme = make_scheme("dgc", dim=300, count=count)
    x, t = unit_vector(300), task(scheme)
    message = scheme.encode(x, t, seeded_rng(1))
    chosen = np.sort(np.argsort(-np.abs(x))[:count])
    expected = np.zeros(300)
    expected[chosen] = x[chosen]
    assert np.array_equal(scheme.decode(message, t), expected)
    assert np.array_equal(scheme.mechanism.coordinates(scheme.open(message, t)), chosen)
    assert message == scheme.encode(x, t, seeded_rng(2))
    assert (scheme.residual, scheme.momentum) == ((True, 0.9) if count < 300 else (False, 0.0))


def test_ties_go_to_the_first_coordinates():
    x = np.array([1, -2, 2, 1, -1, 2, 0, 1], np.float32)
    mechanism = Largest(dim=8, count=5)
    assert mechanism.randomize(x, 1.0, seeded_rng(1))[0].tolist() == [0, 1, 2, 3, 5]
    assert Largest(dim=8, count=2).randomize(0 * x, 1.0, seeded_rng(1))[0].tolist() == [0, 1]


@pytest.mark.parametrize("indices", [[3, 3, 5], [5, 3, 7]])
def test_a_report_that_names_a_coordinate_twice_is_refused(indices):
    scheme = make_scheme("dgc", dim=300, count=3)
    t = task(scheme)
    columns = (np.array(indices, np.uint32), np.ones(3, np.float32))
    forged = codec.seal(scheme.mechanism.layout, columns, scheme=scheme.fingerprint, binding=t.binding)
    total = Aggregate(scheme)
    total.add(t, scheme.encode(unit_vector(300), t, seeded_rng(1)))
    before = total.mean()
    for use in (lambda: scheme.decode(forged, t), lambda: total.add(t, forged)):
        with pytest.raises(MalformedReport, match="do not rise"):
            use()
    assert (total.count, total.mean().tolist()) == (1, before.tolist())
