"""Transforms and a mechanism so small that every step can be followed by hand."""

from dataclasses import dataclass

import numpy as np

from sqsgd import Task, seeded_rng
from sqsgd.core import NOT_PRIVATE, Mechanism, Scheme, Traits, Transform
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
