"""The private step, and the guarantee that it states."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import Densities
from sqsgd.core.codec import Columns, Layout
from sqsgd.core.random import Rng
from sqsgd.core.transforms import Codes, Estimate, Indices, Part, Vectors

Notion = Literal["local", "record", "central", "none"]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy guarantee of a report. The value of ``epsilon`` does not exceed the requested budget.

    The ``notion`` of privacy can be one of the following:

    * ``"local"``: ε-LDP of the entire report for replacing all data of a client, also against the server.
    * ``"record"``: Privacy for adding or removing one of a client's records, also against the server. In
      this case, ``epsilon`` and ``delta`` refer to the composition of ``reports`` reports.
    * ``"central"``: Privacy of the sum of all reports when using secure aggregation.
    * ``"none"``: There is no privacy guarantee.

    >>> from sqsgd import make_scheme
    >>> make_scheme("sqsgd", dim=1000, epsilon=50.0, bytes=64).privacy
    Privacy(epsilon=50.0, notion='local', delta=0.0)
    """

    epsilon: float
    notion: Notion
    delta: float = 0.0
    arithmetic: Literal["exact", "real"] = field(default="exact", repr=False)
    """With ``"real"``, ε is only proved in real arithmetic, while sampling uses floating-point numbers."""
    rho: Fraction = field(default=Fraction(), repr=False)
    """Per record: The exact ρ-zCDP guarantee of a report for the records used by it."""
    rate: float = field(default=1.0, repr=False)
    """Per record: The probability that a given record is used in a report."""
    turns: int = field(default=1, repr=False)
    """Per record: The number of disjoint batches, each record being used in one of them."""
    reports: int = field(default=1, repr=False)
    """Per record: The number of reports that are covered by ``epsilon`` and ``delta``."""

    @property
    def share(self) -> float:
        """Per record: The expected fraction of a client's records that is used in a report."""
        return self.rate / self.turns

    @property
    def is_private(self) -> bool:
        """Whether there is any privacy guarantee."""
        return self.notion != "none"

    @property
    def is_pure_local(self) -> bool:
        """Whether the entire report satisfies pure ε-LDP, i.e., the notion is ``"local"`` and δ is 0."""
        return self.notion == "local" and self.delta == 0


NOT_PRIVATE = Privacy(epsilon=math.inf, notion="none")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What schemes, learning rates, forecasts and the certificate ask about a mechanism."""

    has_symbol: bool = False
    """The last column is one symbol for the vector's size, which the budget for codes does not count."""
    fixed_length: bool = False
    """All reports are as long as the bound: shorter vectors toss a coin for their sign."""
    bounds_coordinates: bool = False
    """``bound`` limits the magnitude of each coordinate; otherwise it limits the l2 norm."""
    chooses: bool = False
    """The mechanism chooses the coordinates that a report is about: see ``Mechanism.coordinates``."""
    records: float = 1.0
    """The public number that a sum of records is divided by."""
    blanket: tuple[Densities, ...] = ()
    """The high and the low density of each part of a report, for ``sqsgd.central_guarantee``.

    Given x the parts are independent. Which outputs have the high density depends on x, but not their share.
    """


class Mechanism(Part):
    """The private step of a scheme. Since it projects its input, ε does not depend on previous steps.

    Guarantees
    ----------
    * ``log_density`` of the same columns differs by at most ε between any two inputs:
      tests/schemes/test_privacy.py::test_exact_privacy.
    * ``randomize`` draws from that density:
      tests/schemes/test_privacy.py::test_what_is_sent_has_the_density_that_privacy_is_proved_of.
    * The mechanism itself rejects NaN and infinity:
      tests/schemes/test_contract.py::test_a_mechanism_refuses_them_by_itself.

    >>> from sqsgd import make_scheme, secure_rng
    >>> mechanism = make_scheme("vqsgd", dim=8, epsilon=2.0, bytes=1).mechanism
    >>> columns = mechanism.randomize(np.full(8, 1e9, np.float32), 1.0, secure_rng())  # too long: projected
    >>> one, other = (mechanism.log_density(columns, np.full(8, x, np.float32), 1.0) for x in (1.0, -1.0))
    >>> abs(one - other) <= mechanism.privacy.epsilon
    True
    """

    dim: int

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The columns that ``randomize`` returns."""

    @property
    def privacy(self) -> Privacy:
        """The guarantee of the columns. By default, there is no guarantee."""
        return NOT_PRIVATE

    @property
    def traits(self) -> Traits:
        """Further properties of the mechanism that other code uses."""
        return Traits()

    @abstractmethod
    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        """Compute private columns for any finite vector of length ``dim``.

        Args:
            x: The vector; the mechanism projects it onto its own domain.
            bound: The public range.
            rng: The private generator, the only source of noise.

        Returns:
            Columns of integers, as in ``layout``.

        Raises:
            ValueError: If the vector is not finite or has a different length.
        """

    def randomize_many(self, x: Vectors, bound: float, rng: Rng) -> Columns:
        """``randomize`` of each row, independently: columns with one row per vector.

        Override this method if a single pass over all rows is faster: tests/core/test_batches.py.
        """
        each = [self.randomize(row, bound, rng) for row in x]
        return tuple(np.stack(rows) for rows in zip(*each, strict=True))

    @abstractmethod
    def estimate(self, columns: Columns, bound: float) -> Estimate:
        """Return the server's estimate of x.

        Args:
            columns: The columns of one report.
            bound: The public range of that report.

        Returns:
            ``dim`` numbers.
        """

    def unit_codes(self, columns: Columns, bound: float) -> tuple[Codes, Estimate] | None:
        """Codes 2 place + sign and sizes of many reports, or None unless these are their estimates."""
        return None

    def magnitude(self, columns: Columns, bound: float) -> float | None:
        """The privatised norm of x, at most about the bound, or None if a report does not contain it."""
        return None

    def magnitudes(self, columns: Columns, bound: float) -> list[float]:
        """Return the magnitudes of many reports, one row each, or nothing where reports do not hold them."""
        return []

    def coordinates(self, columns: Columns) -> Indices:
        """Return the coordinates that a report covers, if the mechanism ``chooses`` them."""
        raise NotImplementedError

    @abstractmethod
    def relative_error(self, share: float) -> float:
        """Compute E|estimate - x|² / |x|² of a report for vectors with this share of the bound as their norm.

        Returns NaN if a closed form is not known, and infinity if the error is unbounded.
        """

    def along(self, share: float) -> float:
        """The share of E|estimate|² that lies along x: for an error that spreads evenly over coordinates."""
        error = self.relative_error(share)
        return (1 + error / self.dim) / (1 + error)

    def unbiased_error(self, share: float) -> float:
        """Return the same, scaled to be right on average along x: a mechanism that ``chooses`` sends less."""
        return self.relative_error(share)

    @property
    def keeps_length(self) -> bool:
        """Whether vectors longer than the bound are kept, so that the noise of the report grows with them."""
        return False

    @property
    def longest(self) -> float:
        """The norm of the longest vector that a report can describe, over the bound."""
        # where the bound limits coordinates, it is three deviations of a Gaussian one
        return math.sqrt(self.dim) / 3 if self.traits.bounds_coordinates else 1.0

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        """Compute the log density of ``columns`` given x with respect to the randomness of ``randomize``.

        This is not available per record, because the columns are modified after adding the noise.
        """
        raise NotImplementedError
