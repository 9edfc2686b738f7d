"""Names, budgets and options: what fits is exact, mistakes are named; golden messages, to the last bit."""

import hashlib
import importlib
import json
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import sqsgd
import sqsgd.schemes
from sqsgd import SCHEMES, make_scheme
from sqsgd.core.codec import Column
from sqsgd.schemes.budgets import codes_that_fit

USUAL = {"dim": 100, "epsilon": 100.0, "bytes": 8}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sqsdg", {}, "did you mean 'sqsgd'"),
        (["sqsgd"], {}, r"name = \['sqsgd'\]"),
        ("sqsgd", {"colour": "red"}, "colour = 'red': 'sqsgd' has no such option"),
        ("fedsgd", {"levels": 2}, "options: none"),
        ("sqsgd-paper", {"adaptive": 1}, "adaptive = 1 must be true or false"),
        ("sqsgd", {"bytes": None}, "bytes is missing: 'sqsgd' needs bytes="),
        ("vqsgd", {"epsilon": None}, "epsilon is missing: 'vqsgd' needs epsilon="),
        ("sqsgd", {"norm_epsilon": 500.0}, "norm_epsilon = 500"),
        ("sqsgd", {"dim": 2**26, "bytes": 2**23, "code": "signs"}, "bytes = 8388608 would send"),
        ("sqsgd", {"code": "dense"}, "code = 'dense' must be one of signs, levels, sparse"),
        ("sqsgd", {"code": "sparse", "levels": 3}, "leave them out"),
        ("sqsgd", {"code": "signs", "levels": 4}, "two levels, not 4"),
        ("sqsgd", {"code": "levels", "levels": 2}, "three or more"),
        ("sqsgd", {"coordinates": 63}, "coordinates = 63 must be a power of two, for the rotation"),
        ("sqsgd-stateless", {"code": "sparse", "coordinates": 64}, "leave coordinates out"),
        ("sqsgd-paper", {"epsilon": 5.0, "adaptive": True}, "norm_epsilon = 10"),
        ("piecewise", {"bytes": 1, "levels": 1024}, "bytes = 1 .* levels = 1024; at least 2 are needed"),
        ("piecewise", {"bytes": 1, "coordinates": 90}, "at least 12 are needed"),
        ("privunit", {"bytes": None, "levels": 4}, "levels = 4 needs a budget"),
        ("vqsgd", {"dim": 119850, "bytes": 2}, "bytes = 2 cannot hold one vertex out of 239700; at least 3"),
        ("vqsgd", {"dim": 119850, "bytes": 5, "repeats": 3}, r"repeats = 3 must be .* from 1 to 2"),
        ("privunit-index", {"dim": 4096, "bytes": 1}, "an index of 8192 vertices; at least 2 are needed"),
        ("fedsel", {"dim": 300, "bytes": 1}, "bytes = 1 cannot hold picks = 1 of dim = 300; at least 2 are"),
        ("cpsgd", {"epsilon": 0.01, "bytes": 2}, "bytes = 2 .* epsilon = 0.01, .* at least 3 are needed"),
        ("cpsgd", {"epsilon": 0.01, "bytes": 64, "levels": 2**20}, "levels = 1048576 is too many"),
        ("qsgd", {"bytes": 4}, "bytes = 4 cannot hold a norm and one code of levels = 1; at least 5"),
        ("terngrad", {"bytes": 4}, "bytes = 4 cannot hold a scale and one code; at least 5 are needed"),
        ("dgc", {"bytes": 4}, "bytes = 4 cannot hold one coordinate and its index; at least 5 are needed"),
        ("dgc", {"bytes": 10, "count": 3}, "count = 3 must be a whole number from 1 to 2"),
    ],
)
def test_mistakes_are_named(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        make_scheme(name, **{**USUAL, **arguments})


def test_epsilon_has_no_default():
    assert make_scheme("fedsgd", dim=100, epsilon=0.5, bytes=1) == make_scheme("fedsgd", dim=100)
    for name in set(SCHEMES) - {"fedsgd", "qsgd", "terngrad", "dgc"}:
        with pytest.raises(ValueError, match="epsilon is missing"):
            make_scheme(name, dim=100, bytes=64)


def test_an_imported_module_is_the_module():
    """No function in the package hides the module of its name."""
    import sqsgd.schemes.privunit_index as imported

    assert imported.NearestVertices
    for found in pkgutil.iter_modules(sqsgd.schemes.__path__):
        module = importlib.import_module(f"sqsgd.schemes.{found.name}")
        assert getattr(sqsgd.schemes, found.name) is module


@pytest.mark.parametrize("name", sorted(set(SCHEMES) - {"privunit-index", "fedsgd"}))
def test_schemes_for_huge_vectors(name):
    scheme = make_scheme(name, dim=2**31, epsilon=400.0, bytes=256)
    assert scheme.code_bits <= 2048


@pytest.mark.parametrize("alphabet", [2, 3, 5, 7, 16, 100, 256, 1000, 2**20])
def test_one_code_more_would_not_fit(alphabet):
    for bits in (*range(1, 70), 2016, 57344):
        count = codes_that_fit(bits, alphabet)
        assert count == 0 or Column(count, alphabet).bits <= bits
        assert Column(count + 1, alphabet).bits > bits
    assert codes_that_fit(-5, alphabet) == 0


GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


@pytest.mark.parametrize("case", GOLDEN)
def test_a_scheme_sends_what_it_always_sent(case):
    name, dim, epsilon, bits = case.split()
    name, _, code = name.partition(":")
    arguments = {"dim": int(dim), "epsilon": float(epsilon), "bytes": int(bits) // 8}
    arguments |= {"code": code} if code else {}
    expected = GOLDEN[case]
    if expected is None:
        with pytest.raises(ValueError, match="bytes"):
            sqsgd.make_scheme(name, **arguments)
        return
    scheme = sqsgd.make_scheme(name, **arguments)
    x = np.random.default_rng(5).standard_normal(scheme.dim).astype(np.float32)
    x /= np.float32(np.sqrt(scheme.dim))
    task = sqsgd.Task(round=3, client=7, seed=1234, dim=scheme.dim, bound=1.0)
    message = scheme.encode(x, task, sqsgd.seeded_rng(11))
    assert {
        "fingerprint": scheme.fingerprint,
        "bits": scheme.bits,
        "epsilon": repr(scheme.privacy.epsilon),
        "message": hashlib.sha256(message).hexdigest()[:24],
    } == {key: expected[key] for key in ("fingerprint", "bits", "epsilon", "message")}
    assert scheme.nmse == pytest.approx(float(expected["nmse"]), rel=1e-3, nan_ok=True)  # a prediction
    decoded = np.linalg.norm(scheme.decode(message, task))
    assert decoded == pytest.approx(float(expected["decode"]), rel=1e-6)
