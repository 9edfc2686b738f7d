"""Many clients at once: reports with the law of single ones, and the same sums."""

import numpy as np
import pytest
import reference
from cases import CASES
from refusing import refuse

from sqsgd import Aggregate, MalformedReport, Rng, Task, make_scheme, secure_rng, seeded_rng
from sqsgd.core import Scheme
from sqsgd.core import task as tasks_module
from sqsgd.core.task import Tasks, in_order, parts_of
from sqsgd.core.transforms import Rotate
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches
from sqsgd.schemes.privunit_index import NearestVertices


def tasks(scheme, count, **changes):
    usual = {"round": 3, "client": 0, "seed": 7, "dim": scheme.dim, "bound": 1.0}
    return Tasks(Task(**{**usual, **changes}), 2**40 + 5 * np.arange(count))


def vectors(scheme, count, seed=1):
    """Of all lengths from zero to twice the bound; some sparse, some with equal magnitudes."""
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((count, scheme.dim))
    x[1::5] = np.sign(x[1::5])
    x[2::5] *= numbers.random((len(x[2::5]), scheme.dim)) < 0.05
    x *= numbers.uniform(0, 2, (count, 1)) / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    x[0] = 0
    return x.astype(np.float32)


def sparse(size, near, count, threshold, norm, epsilon=5.0):
    law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)
    return SparseMatches(law=law, norm=None if norm is None else ScalarDP(1.0, norm, 2))


SMALL = {
    "vertices": NearestVertices(dim=5, epsilon=1.5, nearest=3),
    "all vertices near": NearestVertices(dim=3, epsilon=1.0, nearest=3),
    "sparse": sparse(6, 3, 2, 1, None, 1.5),
    "sparse with a norm": sparse(4, 2, 1, 1, 1.0, 1.0),
    "most are near": sparse(4, 3, 3, 2, None, 2.0),
}
EACH = {case.name: case for case in CASES}
SCHEMES = [
    *(Scheme(name="s", dim=m.dim, transforms=(), mechanism=m) for m in SMALL.values()),
    make_scheme("privunit-index", dim=40, epsilon=0.1, nearest=40),
    make_scheme("privunit-index", dim=3920, epsilon=4.0),
    Scheme(
        name="s", dim=4095, transforms=(Rotate(rounds=2),), mechanism=sparse(4096, 40, 4, 4, 1.0)
    ),
    *(case.make(dim=70, bytes=32) for case in EACH.values()),
]  # fmt: skip
IDS = [*SMALL, "index 40", "index 3920", "sparse 4095", *EACH]
ROWS = 20_000


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("few_words", [False, True])
def test_many_reports_have_the_law_of_single_ones(kind, few_words, monkeypatch):
    """Counts of every possible report against its density, for a long, a short and a tied vector.

    With few words, about half of the rows need further ones.
    """
    mechanism = SMALL[kind]
    if few_words and isinstance(mechanism, NearestVertices):
        monkeypatch.setattr(Rng, "below_many", _rejecting)
    elif few_words:
        few = property(lambda self: self.law.most_hits + self.law.count + 1)
        monkeypatch.setattr(SparseMatches, "_words", few)
    for number, x in enumerate(([0.9, -0.3, 0.2, 0.1, 0, 0], [0.1, 0.2, 0, 0, 0, 0], [-0.5] * 6)):
        x = np.array(x[: mechanism.dim], np.float32)
        columns = mechanism.randomize_many(np.tile(x, (ROWS, 1)), 1.0, seeded_rng(number))
        outputs = [()]
        for column in mechanism.layout:
            outputs = [(*before, each) for before in outputs for each in column.every()]
        chances = [np.exp(mechanism.log_density(output, x, 1.0)) for output in outputs]
        chances = np.array(chances) / sum(chances)
        sent = np.concatenate(columns, axis=1)
        found = [np.count_nonzero((sent == np.concatenate(output)).all(axis=1)) for output in outputs]
        assert sum(found) == ROWS
        assert reference.g_test(found, ROWS * chances) > 1e-6


_BELOW_MANY = Rng.below_many


def _rejecting(rng, bounds):
    """A quarter of the words are such as every bound that is no power of two rejects."""
    words, given = rng.words, []

    def some(count):
        drawn = words(count).copy()
        if not given:
            drawn[::4] = 2**64 - 1
            given.append(True)
        return drawn

    rng.words = some
    try:
        return _BELOW_MANY(rng, bounds)
    finally:
        del rng.words


class Replay(Rng):
    """Hands out given words, to all parts of a batch; counts them."""

    def __init__(self, given):
        super().__init__(0)
        self.given, self.used = given, 0

    def child(self):
        return self

    def word(self):
        self.used += 1
        return int(self.given[self.used - 1])

    def words(self, count):
        self.used += count
        return self.given[self.used - count : self.used].copy()


@pytest.mark.parametrize("kind", SMALL)
def test_no_word_serves_two_clients(kind):
    """Another word in place of any one changes the report of at most one client."""
    scheme = Scheme(name="s", dim=SMALL[kind].dim, transforms=(), mechanism=SMALL[kind])
    x, asked, changed = vectors(scheme, 8), tasks(scheme, 8), set()
    given = seeded_rng(1).words(4000)
    rng = Replay(given)
    expected = scheme.encode_many(x, asked, rng)
    for place in range(rng.used):
        for other in (given[-1 - place], np.uint64(2**63), np.uint64(12345)):
            replaced = given.copy()
            replaced[place] = other
            differs = np.flatnonzero((scheme.encode_many(x, asked, Replay(replaced)) != expected).any(axis=1))
            assert differs.size <= 1
            changed |= set(differs.tolist())
    assert len(changed) == 8


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_messages_do_not_depend_on_the_number_of_threads(scheme, monkeypatch):
    x, asked = vectors(scheme, 20), tasks(scheme, 20)
    monkeypatch.setattr(tasks_module, "_FLOATS", 6 * scheme.dim)
    one, two = (scheme.encode_many(x, asked, seeded_rng(5), workers=workers) for workers in (1, 2))
    assert one.shape == (20, scheme.bits // 8)
    assert np.array_equal(one, two)
    if scheme.privacy.is_private and scheme.bits > 400:
        secure = [scheme.encode_many(x, asked, secure_rng()) for _ in range(2)]
        assert not np.array_equal(*secure)


def test_no_batch_repeats_another_however_large(monkeypatch):
    """Nor does a part repeat another: all vectors are equal, and a report has 500 random bits or more."""
    scheme, seen = make_scheme("sqsgd-stateless", dim=512, epsilon=4.0, bytes=64, code="signs"), []
    monkeypatch.setattr(tasks_module, "_FLOATS", 100 * scheme.dim)
    rng = secure_rng()
    for count in (1, 300, 1100, 1100):
        messages = scheme.encode_many(np.zeros((count, 512), np.float32), tasks(scheme, count), rng)
        seen += [scheme.body(message.tobytes()) for message in messages]
    assert len(set(seen)) == len(seen) == 2501


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_many_reports_are_added_as_single_ones(scheme, weighted, monkeypatch):
    count = 20
    x, asked = vectors(scheme, count), tasks(scheme, count)
    weights = np.random.default_rng(5).uniform(0.1, 10, count) if weighted else None
    messages = scheme.encode_many(x, asked, seeded_rng(1))
    single, many = Aggregate(scheme), Aggregate(scheme)
    for i, task in enumerate(asked):
        single.add(task, messages[i].tobytes(), 1.0 if weights is None else weights[i])
    monkeypatch.setattr(tasks_module, "_FLOATS", 8 * scheme.dim)
    for rows in (slice(9), slice(9, count)):  # in two batches, and with two threads
        part = asked[rows]
        columns = many.add_many(part, messages[rows], None if weights is None else weights[rows], workers=2)
        opened = [scheme.open(own.tobytes(), task) for own, task in zip(messages[rows], part, strict=True)]
        for place, column in enumerate(columns):
            assert np.array_equal(column, [each[place] for each in opened])
    assert (many.count, many._weight) == (single.count, single._weight)
    assert many.mean().tobytes() == single.mean().tobytes()


@pytest.mark.parametrize("name", ["privunit-index", "fedsgd", "sqsgd"])
def test_a_row_that_is_not_finite_is_named(name):
    scheme = make_scheme(name, dim=64, epsilon=20.0, bytes=16)
    x, asked = vectors(scheme, 5), tasks(scheme, 5)
    x[3, 17] = np.nan
    with pytest.raises(ValueError, match=rf"client {asked[3].client}: x\[17\] = nan"):
        scheme.encode_many(x, asked, seeded_rng(1))


def test_shapes_that_do_not_fit_are_refused():
    scheme = make_scheme("privunit-index", dim=64, epsilon=2.0)
    x, asked = vectors(scheme, 5), tasks(scheme, 5)
    rng, total, weights = secure_rng(), Aggregate(scheme), np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    messages = scheme.encode_many(x, asked, rng)
    refuse(r"must be floats of \(5, 64\)", lambda: scheme.encode_many(x[:4], asked, rng))
    refuse("private generator", lambda: scheme.encode_many(x, asked, [rng] * 5))
    refuse("workers = 0", lambda: scheme.encode_many(x, asked, rng, workers=0))
    refuse("5 tasks, 4 messages", lambda: total.add_many(asked, messages[:4]))
    refuse("weight = 0", lambda: total.add_many(asked, messages, weights))
    refuse("must be uint8 of shape", lambda: total.add_many(asked, messages[:, :-1]))
    assert scheme.encode_many(x[:0], asked[:0], secure_rng()).shape == (0, scheme.bits // 8)


@pytest.mark.parametrize("place", [0, 1, 4, -1])
def test_a_malformed_report_is_named_and_none_is_added(place):
    scheme = make_scheme("privunit-index", dim=64, epsilon=2.0)
    asked, total = tasks(scheme, 9), Aggregate(scheme)
    messages = scheme.encode_many(vectors(scheme, 9), asked, secure_rng())
    total.add_many(asked, messages)
    before, damaged = total.mean(), messages.copy()
    damaged[6, place] ^= 1
    with pytest.raises(MalformedReport, match="report 6: "):
        total.add_many(asked, damaged)
    with pytest.raises(MalformedReport, match=r"report 0: .* another"):
        total.add_many(tasks(scheme, 9, bound=2.0), messages)
    assert total.count == 9
    assert np.array_equal(total.mean(), before)


def test_parts_come_in_order_and_an_error_ends_them(monkeypatch):
    asked = tasks(make_scheme("fedsgd", dim=2), 10)

    def sizes(part, own):
        if part.start == 6 and failing:
            raise KeyError(part.start)
        return part.start, len(own)

    failing = False
    assert list(in_order(sizes, parts_of(asked), 2)) == [(0, 10)]
    monkeypatch.setattr(tasks_module, "_FLOATS", 6)
    for workers in (1, 4):
        failing = False
        assert list(in_order(sizes, parts_of(asked), workers)) == [(0, 3), (3, 3), (6, 3), (9, 1)]
        failing = True
        with pytest.raises(KeyError):
            list(in_order(sizes, parts_of(asked), workers))
