"""Tables: within two points of a model that is not private, one message for all mistakes, public scaling."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score
from typed import typed

import sqsgd
from sqsgd.learning.tables import Columns
from sqsgd.training.settings import Settings, make_config

RANGES = {f"x{i}": limits for i, limits in enumerate([
    (0, 100), (0, 1), (-50, 50), (1e3, 9e4), (0, 24), (0, 200), (-1, 1), (10, 60), (0, 7), (0, 1e6),
])}  # fmt: skip
CATEGORIES = {"job": ["a", "b", "c"], "owns": ["no", "yes"]}
FACTS = {"ranges": RANGES, "categories": CATEGORIES}


def people(count, seed=0):
    """Ten columns of numbers with different ranges, two of categories, a noisy label and a noisy number."""
    draw = np.random.default_rng(seed)
    table, score = pd.DataFrame(index=range(count)), np.zeros(count)
    for i, (name, (low, high)) in enumerate(RANGES.items()):
        share = draw.beta(2, 2 + i % 3 * 2, count)
        table[name] = low + (high - low) * share
        score += draw.normal() * 0.6 * (share - share.mean()) / share.std()
    table["job"] = draw.choice(["a", "b", "c"], count, p=[0.5, 0.3, 0.2])
    table["owns"] = draw.choice(["no", "yes"], count, p=[0.7, 0.3])
    score += 0.8 * (table.job == "b") - 0.5 * (table.job == "c") + 0.7 * (table.owns == "yes") - 0.9
    table["rich"] = np.where(score + draw.logistic(size=count) > 0, "rich", "poor")
    table["income"] = 30 + 8 * (score + 0.5 * score.std() * draw.normal(size=count))
    return table


INPUTS = [*RANGES, *CATEGORIES]


@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_thousand_owners_are_enough(seed):
    table = people(25_000, seed)
    train, test = table[:20_000], table[20_000:]
    rows = [Columns(**FACTS).rows(part).numpy() for part in (train, test)]
    clear = LogisticRegression(C=100, max_iter=5000).fit(rows[0], train.rich).score(rows[1], test.rich)
    model = sqsgd.PrivateClassifier(8.0, **FACTS, random_state=seed).fit(train[INPUTS], train.rich)
    assert model.score(test[INPUTS], test.rich) > clear - 0.02
    assert model.summary_["users"] == 20_000
    clear = LinearRegression().fit(rows[0], train.income).score(rows[1], test.income)
    facts = {"ranges": RANGES | {"income": (-40, 100)}, "categories": CATEGORIES}
    number = sqsgd.PrivateRegressor(8.0, **facts, label="income", random_state=seed)
    assert number.fit(train.drop(columns="rich")).score(test) > clear - 0.03


def test_rows_are_public():
    """A row's vector depends on the declarations and the row alone, and is at most 1 long."""
    table = people(500)
    rows = Columns(**FACTS).rows(table)
    assert float(rows.norm(dim=1).max()) <= 1 + 1e-6
    assert rows[7].tolist() == Columns(**FACTS).rows(table[7:8])[0].tolist()
    wild = table[:1].assign(x0=1e9, x1=-np.inf)
    assert Columns(**FACTS).rows(wild)[0, 1:3].tolist() == pytest.approx([13**-0.5, -(13**-0.5)])


def test_owners_of_several_rows_report_once():
    table = people(1200).assign(person=np.arange(1200) % 300).drop(columns="income")
    model = sqsgd.PrivateClassifier(8.0, **FACTS, label="rich", owner="person", random_state=0).fit(table)
    assert (model.summary_["users"], model.summary_["epsilon_all_rounds"]) == (300, 8.0)
    assert model.guarantee_.startswith("epsilon 8 for each owner in column 'person'; noise: seeded")
    with pytest.raises(ValueError, match="clients = 900, but 300 owners"):
        replace(model, settings={"clients": 900}).fit(table)
    drawn = sqsgd.PrivateClassifier(8.0, **FACTS, label="rich", settings={"partition": "drawn"})
    with pytest.raises(ValueError, match="'drawn' gives one row to several"):
        drawn.fit(table.drop(columns="person"))


SMALL = people(40).drop(columns="income")


@pytest.mark.parametrize(
    ("settings", "change", "words"),
    [
        ({"label": ""}, {}, "label is missing: name the column"),
        ({"label": "riches"}, {}, "no column 'riches'; did you mean 'rich'"),
        ({}, {"client": 1}, "'client' holds numbers: name it as owner, or drop it"),
        ({"ranges": {}}, {}, r"column 'x3' holds numbers: give its public range \(low, high\)"),
        ({"categories": {}}, {}, r"column 'job' holds text: declare its categories"),
        ({"ranges": RANGES | {"x0": (5, 5)}}, {}, r"'x0' has the range \(5, 5\): write \(low, high\)"),
        ({"ranges": RANGES | {"x0": ("a", "b")}}, {}, r"'x0' has the range \('a', 'b'\): write"),
        ({"settings": {"epsilon": 80.0}}, {}, "settings: leave out epsilon, which arguments"),
        ({"epsilon": "8"}, {}, "epsilon = '8' must be of type float"),
        ({"ranges": RANGES | {"job": (0, 1)}}, {}, r"'job' has the range \(0, 1\): .*, or categories"),
        ({"categories": CATEGORIES | {"job": ["a", "b"]}}, {}, r"'job' has undeclared categories: \['c'\]"),
        ({"categories": CATEGORIES | {"job": "abc"}}, {}, "categories of 'job' are 'abc': list two"),
        ({}, {"x2": np.nan}, "'x2' has 40 missing values"),
        ({}, {"x2": "much"}, "'x2' has a range, but holds text"),
        ({}, {"rich": "rich"}, "label 'rich' has 1 classes; write 2 to 100"),
        ({"ranges": RANGES | {"rich": (0, 1)}}, {}, "PrivateClassifier does not"),
    ],
)
def test_a_mistake_is_named(settings, change, words):
    facts = {"epsilon": 8.0, **FACTS, "label": "rich", **settings}
    with pytest.raises(ValueError, match=words):
        sqsgd.PrivateClassifier(**facts).fit(SMALL.assign(**change))


def test_all_mistakes_are_in_one_message():
    wrong = SMALL.assign(x2=np.nan, born=pd.Timestamp("2000-01-01"), town="x", rich="rich")
    with pytest.raises(ValueError, match="cannot be used") as error:
        sqsgd.PrivateClassifier(8.0, **FACTS, label="rich", owner="who").fit(wrong)
    for word in ("'x2'", "'born'", "'town'", "'rich'", "'who'"):
        assert word in str(error.value)


def test_other_wrong_calls():
    model = sqsgd.PrivateClassifier(8.0, **FACTS, settings={"rounds": 2})
    with pytest.raises(ValueError, match="not fitted yet"):
        model.predict(SMALL)
    with pytest.raises(ValueError, match="expected a DataFrame, whose columns have names, not a ndarray"):
        model.fit(np.ones((4, 2)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="39 labels for 40 rows"):
        model.fit(SMALL[INPUTS], SMALL.rich[:39])
    with pytest.raises(ValueError, match="PrivateRegressor needs the range of 'rich'"):
        sqsgd.PrivateRegressor(8.0, **FACTS, label="rich").fit(SMALL)
    twice = pd.concat([SMALL[INPUTS], SMALL[["x0"]]], axis=1)
    with pytest.raises(ValueError, match="two columns are called 'x0'"):
        model.fit(twice, SMALL.rich)
    with pytest.raises(ValueError, match="it has no rows"):
        model.fit(SMALL[INPUTS][:0], SMALL.rich[:0])
    narrow = replace(model, ranges=RANGES | {"x0": (0, 10), "x1": (0.1, 0.9)})
    with pytest.warns(UserWarning, match=r"values outside of their ranges are clipped: x0 .100%., x1"):
        narrow.fit(SMALL[INPUTS], SMALL.rich)
    assert model.fit(SMALL[INPUTS], SMALL.rich).summary_["noise"] == "secure"  # without a seed
    with pytest.raises(ValueError, match="no column 'x0'"):
        model.predict(SMALL.drop(columns="x0"))


def test_train_takes_declared_columns(tmp_path):
    """From Python, too: a DataFrame, or the path of a file."""
    people(200).drop(columns="rich").to_csv(tmp_path / "people.csv", index=False)
    facts = {"ranges": {**RANGES, "income": [-40, 100]}, "categories": CATEGORIES, "epsilon": 8.0}
    for number, data in enumerate((people(200).drop(columns="rich"), tmp_path / "people.csv")):
        run = sqsgd.train(dataset=data, **facts, label="income", out=tmp_path / str(number), report=False)
        assert (run.config.clients, run.config.loss, run.summary["protects"]) == (160, "squared-error", "row")
    with pytest.raises(ValueError, match="no column '': set label to the column to predict"):
        sqsgd.train(dataset=data, **facts, out=tmp_path / "none")
    with pytest.raises(ValueError, match="'mnist5k': label, owner, ranges and categories need a DataFrame"):
        sqsgd.train(label="income", epsilon=8.0, out=tmp_path / "none")


def test_scikit_learn_takes_it_for_its_own():
    model = sqsgd.PrivateClassifier(8.0, **FACTS, random_state=0)
    copy = clone(model)
    assert copy is not model
    assert copy == model
    assert cross_val_score(model, SMALL[INPUTS], SMALL.rich, cv=2).shape == (2,)
    numbers = sqsgd.PrivateRegressor(8.0, ranges={0: (0, 1), "target": (0, 1)}, random_state=0)
    table = pd.DataFrame(np.linspace(0, 1, 40)[:, None])  # its column is called 0
    assert cross_val_score(numbers, table, table[0], cv=2).shape == (2,)
    assert model.set_params(epsilon=2.0).epsilon == 2.0
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        model.set_params(depth=3)
    shares = model.fit(SMALL[INPUTS], SMALL.rich).predict_proba(SMALL)
    assert shares.sum(axis=1) == pytest.approx(np.ones(40))
    assert (model.classes_[shares.argmax(axis=1)] == model.predict(SMALL)).all()


def test_a_file_of_people_on_the_command_line(tmp_path):
    people(300).drop(columns="income").assign(person=np.arange(300) % 150).to_csv(tmp_path / "people.csv")
    table = pd.read_csv(tmp_path / "people.csv", index_col=0)
    table.to_csv(tmp_path / "people.csv", index=False)
    declared = " ".join(f"--column {name}={low}:{high}" for name, (low, high) in RANGES.items())
    command = (
        f"sqsgd train --dataset {tmp_path}/people.csv --label rich --owner person {declared} --epsilon 8"
    )
    done = typed(f"{command} --column job=a,b,c --column owns=no,yes --out {tmp_path}/run")
    assert done.code == 0, done.error
    assert "which is the total: no user sends two" in " ".join(done.out.split())
    command = command.replace("--owner person", "--column person=0:150")
    row = typed(f"{command} --column job=a,b,c --column owns=no,yes --out {tmp_path}/row")
    assert "for each row, not for an owner of several" in " ".join(row.out.split())


def test_defaults_never_refuse_what_was_not_set():
    """Also bytes that are left open; as many as the usual ones, they are refused where they are given."""
    settings = Settings(epsilon=8.0, seed=0, secure=False)
    assert settings.make_scheme(6).dim == 6
    for given in (255, 256):
        with pytest.raises(ValueError, match=f"bytes = {given} is more"):
            replace(settings, bytes=given).make_scheme(6)
    config = make_config({"dataset": "people.csv", "label": "a", "ranges": {"a": [0, 1]}})
    assert (config.model, config.loss, config.participation) == ("linear", "squared-error", "once")
    assert [config.on(None, rows).rounds for rows in (3, 500, 20_000)] == [3, 10, 100]
