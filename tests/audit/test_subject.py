"""The audited scheme: its small cases, its inputs, and preimages under its transforms."""

import numpy as np
import pytest
from subjects import LOCAL, subject

from sqsgd import seeded_rng
from sqsgd.audit.subject import forward, has_density, preimage, task_for

FLOATS = {"privunit", "privunit-g"}


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless", "vqsgd"])
def test_preimages(name):
    scheme = subject(name).scheme
    task = task_for(scheme, 3)
    y = np.random.default_rng(0).standard_normal(scheme.mechanism.dim).astype(np.float32)
    assert np.allclose(forward(scheme, preimage(scheme, y, task), task), y, atol=1e-4)
    assert not preimage(scheme, 0 * y, task).any()


@pytest.mark.parametrize(("name", "value"), [("trials", 10), ("seed", -1)])
def test_sizes_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        subject("sqsgd", **{name: value})


@pytest.mark.parametrize("name", LOCAL)
def test_every_local_scheme_has_a_small_case(name):
    """Its outputs can be listed, except for floats, and have a density; all reports are among them."""
    small = subject(name).small(4.0)
    assert small.dense
    assert small.listed == (name not in FLOATS)
    if small.listed:
        assert 1 < len(small.outputs) == len(small.places) <= 300
        x = np.full(small.scheme.dim, 0.1, np.float32)
        assert set(small.reports(x, 50, seeded_rng(1))) <= set(small.places)
        y = forward(small.scheme, x, small.task)
        assert np.exp(small.log_densities(y)).sum() == pytest.approx(1.0, abs=1e-9)


def test_extreme_inputs_reach_zero_all_sizes_and_all_corners():
    small = subject("sqsgd").small(4.0)
    inputs = np.array(small.extreme_inputs(np.random.default_rng(1)))
    lengths = np.linalg.norm(inputs, axis=1) / small.task.bound
    dim = min(inputs.shape[1], 3)
    for size in (1e-4, 0.5, 30.0):
        signs = np.sign(inputs[np.isclose(lengths, size, rtol=1e-3)][:, :dim])
        assert len(np.unique(signs[(signs != 0).all(axis=1)], axis=0)) == 2**dim
    assert np.count_nonzero(lengths == 0) == 1


def test_where_a_density_has_no_closed_form_none_is_claimed():
    on_grid = subject("privunit", {"levels": 5}).scheme.mechanism
    assert not has_density(on_grid)
    assert has_density(on_grid.inner)
