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
    """The base class of linear models for tables which are trained using one report per owner."""

    epsilon: float
    """The privacy budget of an owner, which covers everything sent by this owner."""
    _: KW_ONLY
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The public range (low, high) of each numeric column, which is used for clipping."""
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The public values of all other columns."""
    label: str = ""
    """The name of the column to predict, unless ``y`` is passed to ``fit``."""
    owner: str = ""
    """The name of the column containing the owners. By default, only individual rows are protected."""
    random_state: int | None = None
    """A seed for reproducible experiments, which do not protect anyone. Secure noise is used by default."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of ``RunConfig``, such as ``rounds``, ``bytes``, ``scheme`` or ``lr``."""
    _numbers: ClassVar[bool]

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Train the model. Each call with secure noise increases the privacy loss of the owners.

        Args:
            X: A DataFrame.
            y: The labels. They are not required if ``label`` is a column of the DataFrame.

        Returns:
            The estimator, with a description of the guarantee in the attribute ``guarantee_`` and the content
            of ``summary.json`` in ``summary_``.

        Raises:
            ValueError: If the table or a setting is invalid. The message contains a list of all problems.
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
        """Compute the accuracy of a classifier, or the R2 score of a regressor.

        Args:
            X: A DataFrame.
            y: The labels, unless ``label`` is a column of the DataFrame.

        Returns:
            The score, which is not protected by additional noise.
        """
        return float(super().score(X, X[self.columns_.label] if y is None else y))  # type: ignore[misc]


class PrivateClassifier(PrivateModel, ClassifierMixin, BaseEstimator):
    """Private logistic regression for a DataFrame, with the interface of a scikit-learn classifier."""

    _numbers = False

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Predict the class of each row.

        Args:
            X: A DataFrame with the declared columns.

        Returns:
            An array of classes.
        """
        places = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[places])

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Predict the probabilities of all classes for each row.

        Args:
            X: A DataFrame with the declared columns.

        Returns:
            A matrix with one column for each entry of ``classes_``.
        """
        return np.asarray(softmax(self._scores(X)))


class PrivateRegressor(PrivateModel, RegressorMixin, BaseEstimator):
    """Private least-squares regression for a DataFrame. The label also requires a public range."""

    _numbers = True

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Predict the value of the label for each row.

        Args:
            X: A DataFrame with the declared columns.

        Returns:
            An array of numbers.
        """
        scores = self._scores(X)[:, 0]
        low, high = self.columns_.ranges[self.columns_.label]
        return np.asarray((scores + 1) / 2 * (high - low) + low)


def _table(value: Any) -> Any:
    if not hasattr(value, "iloc") or not hasattr(value, "columns"):
        kind = type(value).__name__
        raise ValueError(f"expected a DataFrame, whose columns have names, not a {kind}: pandas.DataFrame(X)")
    return value.rename(columns=str)
