"""Scheme, with parts so small that every step can be followed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from small_parts import TASK, Longer, Times, Whole, X, scheme, sent

from sqsgd import MalformedReport, Task, make_scheme, seeded_rng, training
from sqsgd.core import Scheme
from sqsgd.core.codec import ENVELOPE_BYTES


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="the transforms give 5 coordinates, the mechanism takes 3"):
        Scheme(name="small", dim=3, transforms=(Longer(),), mechanism=Whole(3))
    with pytest.raises(ValueError, match="dim = 0"):
        scheme(dim=0)


def test_the_fingerprint_covers_everything_that_both_sides_must_share():
    made = scheme(Times(2.0))
    others = [
        replace(made, name="other"),
        scheme(Times(3.0)),
        scheme(Times(2.0), Times(1.0)),
        scheme(Longer()),
        scheme(Times(2.0), dim=4),
    ]
    assert len({made.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert replace(made, residual=True, momentum=0.5).fingerprint == made.fingerprint  # client only
    for other in others[:2]:
        with pytest.raises(MalformedReport, match="scheme"):
            other.open(sent(made), TASK)


def test_the_symbol_is_not_part_of_the_budget():
    made = scheme()
    codes = made.mechanism.layout[0]
    assert made.code_bits == codes.bits
    assert made.bits == 8 * len(sent(made)) == 8 * (ENVELOPE_BYTES + codes.length + 1)
    bare = replace(made, mechanism=Whole(3, counted=False))
    assert (bare.code_bits, bare.bits) == (made.code_bits, made.bits - 8)


def test_vectors_are_clipped_before_anything_else():
    made, task = scheme(Times(4.0)), replace(TASK, clip=float(np.linalg.norm(X)) / 2)
    assert made.decode(sent(made, X, task), task).tolist() == (X / 2).tolist()
    assert made.decode(sent(made, X / 4, task), task).tolist() == (X / 4).tolist()  # short ones are not


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e20])
def test_an_invalid_coordinate_is_named(bad):
    """Whether the first transform finds it in its own pass, or the check before it."""
    x = np.array([1.0, bad, 2.0])
    for made in (scheme(), scheme(Times(1.0), Longer()), *([scheme(Longer())] if bad != 1e20 else [])):
        with pytest.raises(ValueError, match=r"x\[1\] = "):
            sent(made, x)


def test_tasks_must_be_tasks_for_this_length():
    made, message = scheme(), sent(scheme())
    for use in (lambda task: made.encode(X, task, seeded_rng(1)), lambda task: made.open(message, task)):
        with pytest.raises(ValueError, match=r"must be a sqsgd\.Task"):
            use({"round": 2})
        with pytest.raises(ValueError, match=r"task\.dim = 4, but this scheme was made for dim = 3"):
            use(replace(TASK, dim=4))
    with pytest.raises(ValueError, match="private generator"):
        made.encode(X, TASK, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("name", "options", "size", "bound"),
    [
        ("sqsgd", {"code": "signs"}, 32, (32 / 40) ** 0.5),
        ("sqsgd", {"coordinates": 16}, 16, (16 / 40) ** 0.5),
        ("sqsgd-paper", {}, 8, 3 / 40**0.5),
        ("privunit", {}, 40, 1.0),
        ("dgc", {}, 1, 1.0),
    ],
)
def test_sent_coordinates_and_the_bound_for_unit_vectors(name, options, size, bound):
    scheme = make_scheme(name, dim=40, epsilon=50.0, bytes=5, **options)
    task = Task(round=0, client=1, seed=5, dim=40, bound=scheme.unit_bound)
    columns = scheme.randomize(np.arange(40, dtype=np.float32), task, seeded_rng(1))
    sent = scheme.sent_coordinates(columns, task)
    assert (sent.size, scheme.unit_bound) == (size, pytest.approx(bound))
    assert scheme.sends_block == (size not in (1, 40))
    assert name != "dgc" or sent.tolist() == [39]


@pytest.mark.parametrize(
    ("name", "options"),
    [("sqsgd", {"code": "signs"}), ("sqsgd", {"coordinates": 16}), ("fedsel", {}), ("dgc", {})],
)
def test_a_client_does_not_open_its_own_report(name, options, monkeypatch):
    scheme = make_scheme(name, dim=40, epsilon=50.0, bytes=5, **options)
    task = Task(round=0, client=1, seed=5, dim=40, bound=1.0)
    gradient = np.arange(40, dtype=np.float32)
    expected = scheme.encode(gradient, task, seeded_rng(1))
    monkeypatch.setattr(Scheme, "open", None)
    message, residual = training.client_step(scheme, task, gradient, None, seeded_rng(1))
    assert message == expected
    assert residual is not None
