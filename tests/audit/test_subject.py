"""The audited scheme: its sizes, its inputs, and preimages under its transforms."""

import numpy as np
import pytest
from subjects import subject

from sqsgd import seeded_rng
from sqsgd.audit.subject import cosine, forward, has_density, outputs_of, preimage, task_for


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless", "vqsgd"])
def test_preimages(name):
    scheme = subject(name).scheme
    task = task_for(scheme, 3)
    y = np.random.default_rng(0).standard_normal(scheme.mechanism.dim).astype(np.float32)
    assert np.allclose(forward(scheme, preimage(scheme, y, task), task), y, atol=1e-4)
    assert not preimage(scheme, 0 * y, task).any()


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="trials = 10 "):
        subject("sqsgd", trials=10)
    with pytest.raises(ValueError, match="seed = -1"):
        subject("sqsgd", seed=-1)


def test_small_budgets_are_those_at_which_outputs_can_be_listed():
    """All reports are among the outputs; the extreme inputs reach zero, all sizes and all corners."""
    case = subject("sqsgd")
    small = case.small(4.0)
    assert (small.listed, small.dense) == (True, True)
    assert case.small(4.0) is small
    assert len(small.outputs) == len(small.places) == outputs_of(small.scheme.mechanism.layout) <= 300
    x = np.full(small.scheme.dim, 0.1, np.float32)
    assert set(small.reports(x, 200, seeded_rng(1))) <= set(small.places)
    y = forward(small.scheme, x, small.task)
    assert np.exp(small.log_densities(y)).sum() == pytest.approx(1.0, abs=1e-9)
    inputs = np.array(small.extreme_inputs(np.random.default_rng(1)))
    lengths = np.linalg.norm(inputs, axis=1) / small.task.bound
    dim = min(inputs.shape[1], 3)
    for size in (1e-4, 0.5, 30.0):
        signs = np.sign(inputs[np.isclose(lengths, size, rtol=1e-3)][:, :dim])
        assert len(np.unique(signs[(signs != 0).all(axis=1)], axis=0)) == 2**dim
    assert np.count_nonzero(lengths == 0) == 1


def test_where_a_density_has_no_closed_form_none_is_claimed():
    assert has_density(subject("sqsgd").scheme.mechanism)
    on_grid = subject("privunit", {"levels": 5}).scheme.mechanism
    assert not has_density(on_grid)
    assert has_density(on_grid.inner)


def test_numbers_are_the_same_for_one_purpose_and_others_for_another():
    purposes = ((0, "a"), (0, "a"), (0, "b"), (1, "a"))
    draws = [subject("sqsgd", seed=seed).numbers(purpose).random() for seed, purpose in purposes]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3
    assert cosine(np.zeros(3), np.ones(3)) == 0.0
    assert cosine(np.ones(3, np.float32), -2 * np.ones(3)) == pytest.approx(-1.0)
