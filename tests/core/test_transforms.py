"""Transforms are linear, inverted by the server, and the same on both sides."""

import numpy as np
import pytest

from sqsgd import Task, make_scheme, seeded_rng, training
from sqsgd.core.random import PublicStream
from sqsgd.core.transforms import Rotate, Subsample

NUMBERS = np.random.default_rng(5)


def task(dim, **changes):
    return Task(**{"round": 2, "client": 1, "seed": 99, "dim": dim, "bound": 1.0, **changes})


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("dim", [1, 2, 3, 64, 100, 1000, 5000])
def test_rotation_is_orthonormal_and_inverted(rounds, dim):
    rotate, t = Rotate(rounds=rounds), task(dim)
    x, z = NUMBERS.standard_normal((2, dim)).astype(np.float32)
    y = rotate.forward(x, t)
    assert y.size == rotate.out_dim(dim) >= dim
    assert np.isclose(np.linalg.norm(y), np.linalg.norm(x), rtol=1e-5)
    assert np.isclose(y @ rotate.forward(z, t), x @ z, atol=1e-3)
    assert np.allclose(rotate.inverse(y.astype(float), t, dim), x, atol=1e-5)


def test_the_matrix_of_a_rotation_is_signs_and_hadamard_over_root_n():
    t, dim = task(8), 8
    matrix = np.array([Rotate().forward(row, t) for row in np.eye(dim, dtype=np.float32)]).T
    assert np.allclose(np.abs(matrix), dim**-0.5)
    assert np.allclose(matrix @ matrix.T, np.eye(dim), atol=1e-6)


def test_each_client_has_its_own_signs_unless_shared():
    x = np.ones(64, np.float32)
    for shared in (False, True):
        ys = [Rotate(shared=shared).forward(x, task(64, client=client)) for client in (1, 2)]
        assert np.array_equal(*ys) == shared
        assert not np.array_equal(ys[0], Rotate(shared=shared).forward(x, task(64, round=3)))


def test_two_rounds_spread_a_single_spike():
    x = np.zeros(1024, np.float32)
    x[5] = 1
    once, twice = (Rotate(rounds=r).forward(x, task(1024)) for r in (1, 2))
    assert np.allclose(np.abs(once), 1 / 32)
    assert 0.7 < np.sqrt(np.pi / 2) * np.abs(twice).mean() * 32 < 1.3
    assert np.unique(np.abs(twice)).size > 10


def test_subsample_keeps_and_scatters():
    x, t = NUMBERS.standard_normal(1000).astype(np.float32), task(1000)
    stage = Subsample(size=100)
    chosen = stage.coordinates(t, 1000)
    assert (np.diff(chosen) > 0).all()
    y = stage.forward(x, t)
    assert np.array_equal(y, x[chosen])
    back = stage.inverse(y.astype(float), t, 1000)
    assert np.array_equal(back[chosen], y)
    assert np.count_nonzero(back) == 100
    assert np.array_equal(Subsample(size=1000).forward(x, t), x)


def test_rescaled_subsample_is_unbiased_and_keeps_the_norm_on_average():
    x = NUMBERS.standard_normal(50).astype(np.float32)
    stage, total, squares = Subsample(size=10, rescale=True), np.zeros(50), 0.0
    for client in range(4000):
        t = task(50, client=client)
        y = stage.forward(x, t)
        squares += float(y @ y)
        total += stage.inverse(y.astype(float), t, 50)
    assert np.abs(total / 4000 - x).max() < 5 * np.abs(x).max() * (4 / 4000) ** 0.5
    assert np.isclose(squares / 4000, x @ x, rtol=0.05)


def test_shared_and_own_subsets():
    for shared in (False, True):
        stage = Subsample(size=20, shared=shared)
        chosen = [stage.coordinates(task(1000, client=client), 1000).tolist() for client in (1, 2)]
        assert (chosen[0] == chosen[1]) == shared


def test_a_client_draws_its_subset_once(monkeypatch):
    """For encoding, for masking its residual and for later calls; the next round has another subset."""
    scheme, drawn, draw = (
        make_scheme("sqsgd", dim=1000, epsilon=50.0, bytes=16, coordinates=64),
        [],
        PublicStream.subset,
    )
    monkeypatch.setattr(PublicStream, "subset", lambda *args: drawn.append(args) or draw(*args))
    for round in (0, 1):
        t = task(1000, round=round, client=77)
        message, _ = training.client_step(scheme, t, np.ones(1000, np.float32), None, seeded_rng(1))
        sent = training.sent_coordinates(scheme, t, message)
        assert sent.tolist() == draw(t.stream("coordinates", shared=False), 1000, sent.size).tolist()
        assert len(drawn) == round + 1
        assert not sent.flags.writeable


@pytest.mark.parametrize(
    "make", [lambda: Subsample(size=0), lambda: Rotate(rounds=3), lambda: Subsample(size=9).out_dim(5)]
)
def test_bad_parameters(make):
    with pytest.raises(ValueError, match=r"size = |rounds = "):
        make()


@pytest.mark.parametrize("transform", [Rotate(), Rotate(rounds=2), Subsample(size=3)], ids=str)
def test_estimates_of_another_length_are_refused(transform):
    """Their kernels would read beyond the end."""
    for size in (transform.out_dim(6) - 1, transform.out_dim(6) + 1):
        with pytest.raises(ValueError, match="estimate of shape"):
            transform.inverse(np.ones(size), Task(round=0, client=0, seed=1, dim=6, bound=1.0), 6)
