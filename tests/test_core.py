"""Scheme and Privacy, with parts so small that every step can be followed by hand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sqsgd import MalformedReport, Task, federated, make_scheme, seeded_rng
from sqsgd.codec import ENVELOPE_BYTES, Column
from sqsgd.core import NOT_PRIVATE, Aggregate, Mechanism, Privacy, Scheme, Transform

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

    def error_before(self, error, dim):
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

    def error_before(self, error, dim):
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
    def has_symbol(self):
        return self.counted

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


def test_defaults_of_a_mechanism():
    mechanism, total = Whole(3), np.ones(3, np.float32)
    columns = mechanism.randomize(X, 1.0, seeded_rng(1))
    mechanism.add_estimate(columns, 1.0, 0.5, total)
    assert total.tolist() == (1 + 0.5 * X).tolist()
    assert mechanism.magnitude(columns, 1.0) is None
    with pytest.raises(NotImplementedError):
        mechanism.coordinates(columns)


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
    scheme = make_scheme(name, dim=40, epsilon=50.0, bits=38, **options)
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
    scheme = make_scheme(name, dim=40, epsilon=50.0, bits=38, **options)
    task = Task(round=0, client=1, seed=5, dim=40, bound=1.0)
    gradient = np.arange(40, dtype=np.float32)
    expected = scheme.encode(gradient, task, seeded_rng(1))
    monkeypatch.setattr(Scheme, "open", None)
    message, residual = federated.client_step(scheme, task, gradient, None, seeded_rng(1))
    assert message == expected
    assert residual is not None
