"""The linear model on tables: an intercept, warnings about columns, and all problems in one message."""

import numpy as np
import pandas as pd
import pytest

import sqsgd
from sqsgd.learning.datasets import given_dataset

CLEAR = {"model": "linear", "scheme": "fedsgd", "epsilon": 400.0, "bytes": 8, "report": False}


def shifted(count=400):
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(count, 3)), columns=list("abc"))
    return table.assign(target=5 + table.a - table.b + 0.3 * draw.normal(size=count))


def test_a_constant_is_learned(tmp_path):
    about = {"loss": "squared-error", "rounds": 80, "lr": 0.2, "out": tmp_path / "run"}
    run = sqsgd.train(dataset=shifted(), **CLEAR, **about)
    assert run.metrics["R2"] > 0.9  # without an intercept: below 0
    assert dict(run.model.named_parameters())["1.bias"].item() == pytest.approx(5, abs=0.1)


def test_wide_columns_are_told_by_their_spread(tmp_path):
    table = shifted().assign(income=np.linspace(0, 9e4, 400), share=np.linspace(0, 1e-3, 400))
    assert given_dataset("mine", shifted()).note == ""
    told = r"not scaled: income \(up to 9e\+04\), share \(up to 0.001\); give each a public range"
    about = {"loss": "squared-error", "rounds": 1, "lr": 1e-12, "out": tmp_path / "run"}
    with pytest.warns(UserWarning, match=told):
        sqsgd.train(dataset=table, **CLEAR, **about)

    rows = np.random.default_rng(0).normal(size=(100, 9)).astype(np.float32)
    labels, scale = (rows[:, 0] > 0).astype(int), np.ones(9, np.float32)
    assert given_dataset("mine", (rows / 1000, labels)).note == ""
    scale[2:] = 1e4
    told = given_dataset("mine", (rows * scale, labels)).note
    assert told.startswith("columns are not scaled: column 2 (up to ")
    assert told.endswith("and 2 more; divide each by a public constant")


def test_every_problem_is_in_one_message():
    table = pd.DataFrame(
        {
            "born": pd.date_range("2000-01-01", periods=6),
            "town": list("abcabc"),
            "age": [20.0, None, 40, 50, 60, 70],
            "label": [10, 20, 30, 10, 20, 30],
        }
    )
    with pytest.raises(ValueError, match=r"(?s)'born'.*'town'.*'age'.*are 10, 20, 30: number") as error:
        given_dataset("mine", table)
    assert str(error.value).count("get_dummies") == 1
    with pytest.raises(ValueError, match="all labels are 3: one class cannot be learned"):
        given_dataset("mine", (np.ones((9, 2), np.float32), np.full(9, 3)))
    for labels in (np.arange(9) % 3 * 10 + 10, np.arange(9) % 3 + 1):  # 31 or 4 classes are not meant
        with pytest.raises(ValueError, match="number the classes 0 to 2"):
            given_dataset("mine", (np.ones((9, 2), np.float32), labels))
