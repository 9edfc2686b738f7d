"""Mechanisms that are broken on purpose are caught, each by the checks designed for them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from sqsgd import Rng, make_scheme, secure_rng, seeded_rng
from sqsgd.audit import Subject, audit
from sqsgd.codec import ENVELOPE_BYTES, Column, seal
from sqsgd.core import Privacy, Scheme
from sqsgd.mechanisms.match_law import boundary_law, kept_law
from sqsgd.schemes.sqsgd import Direction
from sqsgd.schemes.sqsgd_paper import BoundedRange

PAPER = {"levels": 8, "rule": "optimal"}


def caught(make, noise=secure_rng, trials=2500):
    """The names of the checks that a scheme breaks."""
    subject = Subject(
        name="broken",
        make=make,
        dim=3000,
        epsilon=150.0,
        bits=1536,
        budgets=(4.0,),
        exact_budgets=(4.0,),
        trials=trials,
        noise=noise,
    )
    return {finding.name for finding in audit(subject, inversion=False).violated}


def broken(change, name="sqsgd", **options):
    """A factory of schemes whose mechanism is passed through ``change``; signs, by default."""
    options = options or ({"code": "signs"} if name == "sqsgd" else {})

    def make(*, dim, epsilon, bits):
        scheme = make_scheme(name, dim=dim, epsilon=epsilon, bits=bits, **options)
        mechanism = change(scheme.mechanism) or scheme.mechanism
        return dataclasses.replace(scheme, mechanism=mechanism)

    return make


def test_the_correct_counterparts_of_broken_schemes_pass():
    """The schemes that are broken below pass before the change."""
    assert caught(broken(lambda mechanism: None), trials=1000) == set()
    assert caught(broken(lambda mechanism: None, "sqsgd-paper", **PAPER), trials=1000) == set()


# ---------------------------------------------------------------- the law of the matches


def test_a_keep_that_is_too_large_is_caught():
    """p too large for both the densities and the sampler: the exact ratio and the reports show it."""

    def change(mechanism):
        quantizer = mechanism.quantizer
        quantizer.law = boundary_law(
            quantizer.dim, quantizer.levels, 2.5 * quantizer.epsilon, quantizer.threshold
        )

    found = caught(broken(change), trials=6000)
    assert {"likelihood ratio, all outputs", "likelihood ratio, real budget"} <= found
    assert "distinguishing reports, budget 4" in found


def test_a_sampler_that_keeps_too_often_is_caught():
    """p too large in the sampler alone: the density is still correct."""

    def change(mechanism):
        quantizer = mechanism.quantizer
        wrong = boundary_law(quantizer.dim, quantizer.levels, 2.5 * quantizer.epsilon, quantizer.threshold)
        quantizer.law.__dict__["sampler"] = wrong.sampler

    found = caught(broken(change), trials=6000)  # with 2,500 the bound is only three deviations above 4
    assert {"law of all outputs", "distinguishing reports, budget 4"} <= found
    assert "likelihood ratio, all outputs" not in found


def test_a_threshold_that_is_off_by_one_is_caught():
    """The sampler draws more than τ matches instead of at least τ, with the same p."""

    def change(mechanism):
        quantizer = mechanism.quantizer
        wrong = kept_law(
            quantizer.dim,
            quantizer.levels,
            math.inf,
            min(quantizer.threshold + 1, quantizer.dim),
            Fraction(quantizer.keep),
        )
        quantizer.law.__dict__["sampler"] = wrong.sampler

    found = caught(broken(change, "sqsgd-paper", **PAPER))
    assert "law of the number of matches" in found


def test_a_smaller_epsilon_than_the_real_one_is_caught():
    @dataclass(frozen=True, kw_only=True)
    class Understated(Direction):
        @property
        def privacy(self):
            whole = self.quantizer.epsilon + self.norm.epsilon
            return Privacy(epsilon=0.8 * whole, notion="local")

    found = caught(broken(lambda m: Understated(quantizer=m.quantizer, norm=m.norm, reach=m.reach)))
    assert {"likelihood ratio, all outputs", "likelihood ratio, real budget"} <= found


# ---------------------------------------------------------------- places and codes


def rewritten(choose_places, choose_codes):
    """A quantiser with the right number of matches, but chosen positions and other codes."""

    def change(mechanism):
        quantizer = mechanism.quantizer

        def randomize(x, bound, rng):
            codes = quantizer.quantize(x, bound, rng)
            kept = choose_places(quantizer.law.sampler.draw(rng), quantizer.dim, rng)
            others = choose_codes(codes, quantizer.levels, rng)
            return np.where(kept, codes, others).astype(np.uint8)

        quantizer.randomize = randomize

    return change


def uniform_places(count, dim, rng):
    order = np.argsort(rng.take(8 * dim).view("<u8"))
    return np.isin(np.arange(dim), order[:count])


def first_places(count, dim, rng):
    return np.arange(dim) < count


def one_run(count, dim, rng):
    """All positions are equally likely, but the matches form one cyclic run."""
    return (np.arange(dim) + rng.below(dim)) % dim < count


def uniform_codes(codes, levels, rng):
    shift = 1 + np.array([rng.below(levels - 1) for _ in codes])
    return (codes + shift) % levels


def next_codes(codes, levels, rng):
    return (codes + 1) % levels


def test_the_rewritten_quantiser_is_right_when_it_is_told_to_be():
    assert (
        caught(broken(rewritten(uniform_places, uniform_codes), "sqsgd-paper", **PAPER), trials=2000) == set()
    )


@pytest.mark.parametrize(
    ("places", "codes", "names"),
    [
        (first_places, uniform_codes, {"places of the matches", "runs of matches", "law of all outputs"}),
        (one_run, uniform_codes, {"runs of matches"}),
        (uniform_places, next_codes, {"codes of the others", "law of all outputs"}),
    ],
)
def test_places_and_codes_that_are_not_uniform_are_caught(places, codes, names):
    assert names <= caught(broken(rewritten(places, codes), "sqsgd-paper", **PAPER), trials=2000)


def test_a_norm_without_randomised_response_is_caught():
    def change(mechanism):
        levels = mechanism.norm.levels
        mechanism.norm.privatize = lambda value, rng: round(levels * min(value, 1.0))

    found = caught(broken(change))
    assert {"law of the norm symbol", "law of all outputs", "distinguishing reports, budget 4"} <= found


# ---------------------------------------------------------------- noise


def test_a_seeded_generator_for_every_report_is_caught():
    found = caught(broken(lambda mechanism: None), noise=lambda: seeded_rng(7), trials=1000)
    assert {"generator of clients", "noise of two generators", "noise of two reports"} <= found


def test_a_mechanism_with_a_stream_of_its_own_is_caught():
    @dataclass(frozen=True, kw_only=True)
    class Repeating(Direction):
        def randomize(self, x, bound, rng):
            return Direction.randomize(self, x, bound, seeded_rng(1))

    found = caught(
        broken(lambda m: Repeating(quantizer=m.quantizer, norm=m.norm, reach=m.reach)), trials=1000
    )
    assert {"noise of two reports", "noise comes from the generator"} <= found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_noise_that_a_fork_repeats_is_caught(monkeypatch):
    monkeypatch.setattr(Rng, "_after_fork", lambda self: None)
    monkeypatch.setattr(Rng, "_check_process", lambda self: None)
    found = caught(broken(lambda mechanism: None), trials=1000)
    assert {"noise of two generators", "noise of two reports"} <= found


# ---------------------------------------------------------------- leaks


def test_an_extra_column_in_clear_is_caught():
    @dataclass(frozen=True, kw_only=True)
    class Extra(Direction):
        @property
        def layout(self):
            return (*Direction.layout.func(self), Column(min(self.dim, 8), None))

        def randomize(self, x, bound, rng):
            return (*Direction.randomize(self, x, bound, rng), x[:8].astype(np.float32))

    found = caught(broken(lambda m: Extra(quantizer=m.quantizer, norm=m.norm, reach=m.reach)), trials=1000)
    assert {"columns have a density", "numbers in clear", "same codes, same bytes"} <= found


def test_an_extra_column_of_codes_is_caught():
    """A finite alphabet is not enough: no density accounts for the column."""

    @dataclass(frozen=True, kw_only=True)
    class Extra(BoundedRange):
        @property
        def layout(self):
            return (*BoundedRange.layout.func(self), Column(self.dim, 2))

        def randomize(self, x, bound, rng):
            return (*BoundedRange.randomize(self, x, bound, rng), (x > 0).astype(np.uint8))

    found = caught(
        broken(lambda m: Extra(quantizer=m.quantizer), "sqsgd-paper", levels=2, rule="optimal"), trials=1000
    )
    assert {"columns have a density", "densities add up to one", "correlation of the bytes"} <= found


def test_a_vector_in_the_low_bits_of_codes_is_caught():
    @dataclass(frozen=True, kw_only=True)
    class LowBits(BoundedRange):
        def randomize(self, x, bound, rng):
            (codes,) = BoundedRange.randomize(self, x, bound, rng)
            return (codes & 0xFE | (x.view(np.uint32) >> 12 & 1).astype(np.uint8),)

    found = caught(broken(lambda m: LowBits(quantizer=m.quantizer), "sqsgd-paper", **PAPER), trials=2000)
    assert {"same codes, same bytes", "law of all outputs", "law of the number of matches"} <= found


def test_a_residual_among_the_codes_is_caught():
    """Four bytes of an unsent coordinate replace 32 codes in a well-formed message."""

    @dataclass(frozen=True, kw_only=True)
    class Leaking(Scheme):
        def encode(self, x, task, rng):
            message = bytearray(Scheme.encode(self, x, task, rng))
            sent = self.transforms[0].coordinates(task, self.dim) if self.residual else []
            waiting = np.delete(x, sent)
            if waiting.size >= 64:
                message[ENVELOPE_BYTES : ENVELOPE_BYTES + 64] = waiting[:16].astype("<f4").tobytes()
            layout, start, columns = self.mechanism.layout, ENVELOPE_BYTES, []
            for column in layout:
                columns.append(column.unpack(memoryview(bytes(message))[start : start + column.length]))
                start += column.length
            return seal(layout, columns, scheme=self.fingerprint, binding=task.binding)

    def make(*, dim, epsilon, bits):
        scheme = make_scheme("sqsgd", dim=dim, epsilon=epsilon, bits=bits, code="signs")
        return Leaking(**{field.name: getattr(scheme, field.name) for field in dataclasses.fields(scheme)})

    found = caught(make, trials=2000)
    assert {"coordinates that are not sent", "numbers in clear", "places of the matches"} <= found


def test_a_global_generator_is_caught():
    @dataclass(frozen=True, kw_only=True)
    class Careless(Direction):
        def randomize(self, x, bound, rng):
            np.random.random()  # noqa: NPY002
            return Direction.randomize(self, x, bound, rng)

    found = caught(broken(lambda m: Careless(quantizer=m.quantizer, norm=m.norm, reach=m.reach)), trials=1000)
    assert found == {"global generators"}
