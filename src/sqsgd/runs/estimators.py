"""Tables as scikit-learn users expect: each owner of rows sends one report. The scaling is public."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.extmath import softmax
from sklearn.utils.validation import check_is_fitted

from sqsgd.runs.train import train


@dataclass
class PrivateModel:
    """A linear model of a table, learned from one report per owner: a classifier or a regressor."""

    epsilon: float
    """ε of an owner's one report, and so of everything that leaves the owner."""
    _: KW_ONLY
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The public range (low, high) of each column of numbers; values outside are clipped."""
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The public values of each other column."""
    label: str = ""
    """The column to predict, unless ``fit`` gets ``y``."""
    owner: str = ""
    """The column that names whose row it is. Without one, each row is protected, not an owner."""
    random_state: int | None = None
    """A seed for an experiment that can be repeated and protects nobody. None: secure noise."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of ``RunConfig``, such as ``rounds``, ``bytes``, ``scheme`` or ``lr``."""
    _numbers: ClassVar[bool]

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Learn from a DataFrame; ``y``: the labels, if they are not its column ``label``.

        Sets ``guarantee_``, a sentence, and ``summary_``, as in a run's ``summary.json``.

        Raises:
            ValueError: Something is wrong with the table or a setting; the message lists every problem.
        """
        from sqsgd.learning.datasets import table_dataset
        from sqsgd.learning.tables import Columns

        table, label = _table(X), self.label or str(getattr(y, "name", None) or "target")
        if y is not None:
            if len(y) != len(table):
                raise ValueError(f"y: there are {len(y):,} labels for {len(table):,} rows")
            table = table.assign(**{label: np.asarray(y)})
        elif not self.label:
            raise ValueError("label is missing: name the column to predict, or call fit(X, y)")
        ranges, categories = ({str(k): v for k, v in each.items()} for each in (self.ranges, self.categories))
        if (label in ranges) != self._numbers:
            raise ValueError(
                f"ranges: PrivateRegressor needs the range of {label!r}, PrivateClassifier does not"
            )
        facts: dict[str, Any] = {"label": label, "owner": self.owner}
        self.columns_ = Columns(**facts, ranges=ranges, categories=categories)
        data, names = table_dataset("table", table, self.columns_, split=False)
        facts["ranges"] = {name: list(map(float, ends)) for name, ends in ranges.items()}
        facts["categories"] = {name: list(map(str, values)) for name, values in categories.items()}
        facts |= {"secure": self.random_state is None, "seed": self.random_state or 0}
        facts |= {"dataset": data, "epsilon": self.epsilon}
        if given := sorted(facts.keys() & self.settings.keys()):
            raise ValueError(f"settings: leave out {', '.join(given)}, which arguments of this class decide")
        settings = {"evaluate_every": 1_000_000, **self.settings, **facts}
        with tempfile.TemporaryDirectory() as folder:
            run = train(out=f"{folder}/run", report=False, **settings)
        self.weights_, self.classes_ = next(run.model.parameters()).detach().numpy(), np.array(names)
        self.summary_ = told = dict(run.summary)
        whom = f"owner in column {self.owner!r}" if self.owner else "row, not for an owner of several"
        spent = f"epsilon {told['epsilon_all_rounds']:g} for each {whom}; noise: {told['noise']}"
        self.guarantee_ = f"{spent}; central: {told.get('central_note', 'none')}"
        return self

    def _scores(self, table: Any) -> npt.NDArray[Any]:
        check_is_fitted(self, "weights_")
        return np.asarray(self.columns_.rows(_table(table)).double().numpy() @ self.weights_.T.astype(float))

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """scikit-learn's score: the accuracy of classes, or R2 of numbers."""
        return float(super().score(X, X[self.columns_.label] if y is None else y))  # type: ignore[misc]


class PrivateClassifier(PrivateModel, ClassifierMixin, BaseEstimator):
    """A private logistic regression on a DataFrame: see ``PrivateModel`` for its arguments."""

    _numbers = False

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the likeliest class of each row."""
        places = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[places])

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the model's probability of each of ``classes_``, a row of each row."""
        return np.asarray(softmax(self._scores(X)))


class PrivateRegressor(PrivateModel, RegressorMixin, BaseEstimator):
    """A private least-squares regression on a DataFrame. The label needs a public range, too."""

    _numbers = True

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the predicted number of each row."""
        scores = self._scores(X)[:, 0]
        low, high = self.columns_.ranges[self.columns_.label]
        return np.asarray((scores + 1) / 2 * (high - low) + low)


def _table(value: Any) -> Any:
    if not hasattr(value, "iloc") or not hasattr(value, "columns"):
        kind = type(value).__name__
        raise ValueError(f"expected a DataFrame, whose columns have names, not a {kind}: pandas.DataFrame(X)")
    return value.rename(columns=str)
