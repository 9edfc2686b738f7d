"""Vectors whose codes are known before the private step."""

import numpy as np
import pytest
from subjects import subject

from sqsgd.audit.known_codes import certain_vectors, quantizer_of, symbol_of
from sqsgd.audit.subject import forward


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless", "sqsgd-paper", "privunit-inf"])
def test_certain_vectors_are_rounded_to_their_stated_codes(name):
    case = subject(name)
    scheme, vectors = case.scheme, [*certain_vectors(case)]
    assert len(vectors) == 8
    for vector in vectors:
        codes = scheme.mechanism.quantizer.quantize(
            forward(scheme, vector.x, vector.task),
            {"sqsgd-paper": vector.task.bound}.get(name, 1e-9 * vector.task.bound),
            case.noise(),
        )
        if name == "privunit-inf":  # clamped to one bit, whatever the range
            codes = np.where(codes > 0, 1, 0)
        assert np.array_equal(codes, vector.codes)


@pytest.mark.parametrize("name", ["piecewise", "privunit", "fedsgd"])
def test_where_codes_are_not_privquants_no_vector_is_certain(name):
    case = subject(name)
    assert quantizer_of(case.scheme.mechanism) is None
    assert symbol_of(case.scheme.mechanism) is None
    assert [*certain_vectors(case)] == []


def test_the_symbol_is_about_the_size_of_the_vector():
    """In units of the bound: the norm of the mechanism's input, or its largest magnitude, or none."""
    for name, options, norm in (
        ("sqsgd", {}, 2),
        ("sqsgd-paper", {"adaptive": True, "norm_epsilon": 1.0}, np.inf),
    ):
        case = subject(name, options)
        for vector in certain_vectors(case):
            image = forward(case.scheme, vector.x, vector.task)
            assert vector.size == pytest.approx(np.linalg.norm(image, norm) / vector.task.bound, rel=1e-5)
    assert {vector.size for vector in certain_vectors(subject("sqsgd-paper"))} == {None}
