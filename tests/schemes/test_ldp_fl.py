"""LDP-FL's two readings: ε for the vector, and the paper's ε for each weight."""

import itertools

import numpy as np
import pytest
from cases import task, unit_vector

from sqsgd import seeded_rng
from sqsgd.schemes.ldp_fl import ldp_fl
from sqsgd.training.settings import make_config
from sqsgd.transforms import Rotate


def worst_ratio(scheme, pairs):
    """The largest ratio of a message's probabilities between two inputs."""
    mechanism = scheme.mechanism
    outputs = [np.array(bits, np.uint8) for bits in itertools.product((0, 1), repeat=mechanism.dim)]

    def densities(x):
        return np.array([mechanism.log_density((codes,), x, 1.0) for codes in outputs])

    return max(float(np.abs(densities(x) - densities(y)).max()) for x, y in pairs)


def corner_pairs(dim, differing):
    """Corners of the cube that differ in this many coordinates."""
    corners = [np.array(c, np.float32) for c in itertools.product((-1, 1), repeat=dim)]
    return [(x, y) for x in corners for y in corners if np.count_nonzero(x != y) == differing]


def test_per_weight():
    """ε between vectors that differ in one weight, and k ε for the whole vector, as ``notion`` states."""
    scheme = ldp_fl(3, 2.0, 3, per_weight=True, reach=1.0)
    assert (scheme.privacy.notion, scheme.privacy.epsilon) == ("per-weight", 2.0)
    assert worst_ratio(scheme, corner_pairs(3, 1)) == pytest.approx(2.0)
    assert worst_ratio(scheme, corner_pairs(3, 3)) == pytest.approx(6.0)


def test_epsilon_is_that_of_the_whole_vector_by_default():
    scheme = ldp_fl(4, 6.0, 4, coordinates=4, reach=1.0)
    assert (scheme.privacy.notion, scheme.privacy.epsilon) == ("local", 6.0)
    assert worst_ratio(scheme, corner_pairs(4, 4)) == pytest.approx(6.0)


def test_a_per_weight_report_labelled_as_local_is_caught():
    sold = ldp_fl(3, 2.0, 3, per_weight=True, reach=1.0)
    assert worst_ratio(sold, corner_pairs(3, 3)) > sold.privacy.epsilon


def test_weights_are_not_rotated_where_each_has_its_own_budget():
    """A rotation would spread one weight over all bits; only the sent weights' bits may move."""
    scheme = ldp_fl(300, 2.0, 64, per_weight=True)
    assert not any(isinstance(stage, Rotate) for stage in scheme.transforms)
    assert scheme.code_bits == scheme.mechanism.dim == 64
    x, t = unit_vector(300), task(scheme)
    before = scheme.encode(x, t, seeded_rng(1))
    sent = set(scheme.transforms[0].coordinates(t, 300).tolist())
    x[next(i for i in range(300) if i not in sent)] = 9.0
    assert scheme.encode(x, t, seeded_rng(1)) == before


def test_mistakes_are_named():
    for options, message in [
        ({"bits": 10, "coordinates": 11}, "at least 11 are needed"),
        ({"bits": 10, "coordinates": 11, "per_weight": True}, "coordinates = 11"),
        ({"bits": -1, "per_weight": True}, "bits = -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            ldp_fl(**{"dim": 300, "epsilon": 40.0, **options})


def test_clipping_would_break_the_guarantee_of_single_weights(monkeypatch):
    """Clipping scales all weights by their common norm: one changed weight would change them all."""
    scheme = ldp_fl(30, 1.0, 30, per_weight=True, reach=1.0)
    x = np.full(30, 1.0, np.float32)
    clipping = task(scheme, clip=0.5)
    with pytest.raises(ValueError, match=r"clip = 0\.5: clipping scales all weights"):
        scheme.encode(x, clipping, seeded_rng(1))
    monkeypatch.setattr(type(scheme), "check_clip", lambda self, clip: None)
    seen = []
    monkeypatch.setattr(
        type(scheme.mechanism), "randomize", lambda self, x, bound, rng: seen.append(x) or (np.zeros(30),)
    )
    other = x.copy()
    other[0] = 1e6
    for vector in (x, other):
        scheme.randomize(vector, clipping, seeded_rng(1))
    codes = (np.zeros(30, np.uint8),)
    one, two = (scheme.mechanism.log_density(codes, vector, 0.4) for vector in seen)
    assert abs(one - two) > scheme.privacy.epsilon  # what the refusal prevents


def test_a_configuration_with_clipping_is_refused():
    config = make_config(
        {"scheme": "ldp-fl", "options": {"per_weight": True}, "clip_norm": 0.5, "clients": 3}
    )
    with pytest.raises(ValueError, match=r"clip = 0\.5"):
        config.fitted(ldp_fl(300, 2.0, 64, per_weight=True), 3)
    config.fitted(ldp_fl(300, 2.0, 64), 3)
