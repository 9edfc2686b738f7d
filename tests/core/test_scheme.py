"""Schemes and the mean of reports, with parts so small that every step can be followed by hand."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import task, unit_vector
from refusing import refuse

from sqsgd import Aggregate, MalformedReport, Task, make_scheme, seeded_rng
from sqsgd.core import NOT_PRIVATE, Mechanism, Privacy, Scheme, Traits, Transform
from sqsgd.core.codec import Column

TASK = Task(round=2, client=7, seed=1, dim=3, bound=10.0)
X = np.array([1.0, -2.0, 3.0], np.float32)


@dataclass(frozen=True)
class Times(Transform):
    """Multiplies by a public number."""

    factor: float
    shared: bool = True

    @property
    def identity(self):
        return f"times {self.factor}"

    def out_dim(self, dim):
        return dim

    def forward(self, x, task):
        return np.float32(self.factor) * x

    def inverse(self, y, task, dim):
        return y / self.factor

    def error_before(self, error, dim, along=None):
        return self.factor * error


@dataclass(frozen=True)
class Longer(Transform):
    """Appends client and dim to the vector; the server removes them."""

    shared: bool = False
    checks_input = True

    @property
    def identity(self):
        return "longer"

    def out_dim(self, dim):
        return dim + 2

    def forward(self, x, task):
        if not np.isfinite(x).all():
            raise ValueError("something is not finite")
        return np.concatenate([x, [task.client, x.size]]).astype(np.float32)

    def inverse(self, y, task, dim):
        assert y[-2:].tolist() == [task.client, dim]
        return y[:dim]

    def error_before(self, error, dim, along=None):
        return error + dim


@dataclass(frozen=True)
class Whole(Mechanism):
    """Whole numbers from -50 to 50, and how many of them are negative as a symbol."""

    dim: int
    counted: bool = True

    @property
    def identity(self):
        return f"whole {self.dim}"

    @property
    def traits(self):
        return Traits(has_symbol=self.counted)

    @property
    def layout(self):
        codes = Column(self.dim, 101)
        return (codes, Column(1, 256)) if self.counted else (codes,)

    @property
    def privacy(self):
        return NOT_PRIVATE

    def randomize(self, x, bound, rng):
        codes = (np.rint(x) + 50).astype(np.uint8)
        return (codes, np.array([np.sum(x < 0)], np.uint8)) if self.counted else (codes,)

    def estimate(self, columns, bound):
        return columns[0].astype(float) - 50

    def relative_error(self, share):
        return 1.0

    def log_density(self, columns, x, bound):
        return 0.0


def scheme(*transforms, dim=3, **more):
    size = dim
    for transform in transforms:
        size = transform.out_dim(size)
    return Scheme(name="small", dim=dim, transforms=transforms, mechanism=Whole(size), **more)


def sent(made, x=X, task=TASK):
    return made.encode(x, task, seeded_rng(1))


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


def test_vectors_are_clipped_before_anything_else():
    made, task = scheme(Times(4.0)), replace(TASK, clip=float(np.linalg.norm(X)) / 2)
    assert made.decode(sent(made, X, task), task).tolist() == (X / 2).tolist()
    assert made.decode(sent(made, X / 4, task), task).tolist() == (X / 4).tolist()  # short ones are not


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
    "transforms",
    [
        (),
        (Times(2.0),),
        (Longer(),),
        (Times(2.0), Longer()),
        (Longer(), Times(2.0)),
        (Times(4.0), Times(0.5)),
    ],
)
def test_transforms_are_inverted_in_reverse_order(transforms):
    """By decode, and by an aggregate, which inverts shared transforms only once, after the sum."""
    made = scheme(*transforms)
    assert made.decode(sent(made), TASK).tolist() == X.tolist()
    total, other = Aggregate(made), replace(TASK, client=8)
    total.add(TASK, sent(made))
    total.add(other, sent(made, 3 * X, other))
    assert total.mean().tolist() == (2 * X).tolist()


def test_errors_are_carried_back_through_the_transforms():
    assert scheme().nmse == 1.0
    assert scheme(Times(2.0), Longer()).nmse == 2.0 * (1.0 + 3)
    assert scheme(Longer(), Times(2.0)).nmse == 2.0 * 1.0 + 3


def test_defaults_of_a_mechanism():
    mechanism = Whole(3)
    columns = mechanism.randomize(X, 1.0, seeded_rng(1))
    assert mechanism.magnitude(columns, 1.0) is None
    with pytest.raises(NotImplementedError):
        mechanism.coordinates(columns)


def test_aggregates():
    scheme, x = make_scheme("sqsgd", dim=8, epsilon=9.0, bytes=1), np.zeros(8, np.float32)
    tasks = [Task(round=r, client=0, seed=0, dim=8, bound=1.0) for r in (0, 1)]
    reports = [(task, scheme.encode(x, task, seeded_rng(1))) for task in tasks]
    refuse("no reports", lambda: scheme.aggregate([]))
    refuse("round 1", lambda: scheme.aggregate(reports))
    for weight in (0.0, 1e-50, 1e40, math.nan):
        refuse("weight = ", lambda weight=weight: Aggregate(scheme).add(*reports[0], weight=weight))
    refuse("task = None", lambda: scheme.encode(x, None, seeded_rng(1)))
    refuse(
        r"task\.dim = 9",
        lambda: scheme.encode(x, Task(round=0, client=0, seed=0, dim=9, bound=1.0), seeded_rng(1)),
    )


def test_many_reports_are_summed_as_exactly_as_few():
    """Summed in float32 alone, 20,000 times 0.1 would be off in the fourth digit."""
    scheme = make_scheme("fedsgd", dim=2)
    t, total = Task(round=0, client=0, seed=0, dim=2, bound=1.0), Aggregate(scheme)
    message = scheme.encode(np.array([0.1, -3.0]), t, seeded_rng(1))
    for count in range(1, 20_001):
        total.add(t, message)
        if count in (1, 255, 256, 257, 20_000):  # reading the mean in between changes nothing
            assert total.count == count
            assert np.allclose(total.mean(), [0.1, -3.0], rtol=1e-5)


def test_reports_can_be_weighted():
    """Where each client has its own coordinates (sqsgd), and where all have the same."""
    for name in ("sqsgd", "sqsgd-paper"):
        scheme = make_scheme(name, dim=300, epsilon=120.0, bytes=64)
        tasks = [task(scheme, client=client) for client in range(2)]
        reports = [(t, scheme.encode(unit_vector(300), t, seeded_rng(t.client))) for t in tasks]
        once, twice = Aggregate(scheme), Aggregate(scheme)
        for t, message in (*reports, reports[1]):
            once.add(t, message)
        for (t, message), weight in zip(reports, (0.5, 1.0), strict=True):
            twice.add(t, message, weight=weight)
        assert (once.count, twice.count) == (3, 2)
        assert np.allclose(once.mean(), twice.mean(), atol=1e-6)


@pytest.mark.parametrize(
    ("notion", "delta", "answers"),
    [
        ("local", 0.0, (True, True, True)),
        ("local", 1e-9, (True, False, True)),
        ("per-weight", 0.0, (True, False, True)),
        ("central", 1e-5, (True, False, False)),
        ("none", 0.0, (False, False, False)),
    ],
)
def test_questions_about_a_guarantee(notion, delta, answers):
    privacy = Privacy(epsilon=1.0, notion=notion, delta=delta)
    assert (privacy.is_private, privacy.is_pure_local, privacy.protects_single_reports) == answers
