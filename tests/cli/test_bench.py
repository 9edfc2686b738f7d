"""`sqsgd bench`: the exit status says whether all targets are met."""

import json

import pytest
from typed import typed

from sqsgd.measurement import estimation
from sqsgd.measurement import speed as bench
from sqsgd.measurement.speed import Figure

FAST = Figure(name="encode", value=50.0, unit="times", target=40.0, at_least=True)
SLOW = Figure(name="server", value=9.5, unit="copies", target=9.0)
FREE = Figure(name="decode", value=1.0, unit="ms")


@pytest.mark.parametrize(("figures", "code"), [([FAST, FREE], 0), ([FAST, SLOW, FREE], 1)])
def test_a_missed_target_ends_with_1(monkeypatch, figures, code):
    monkeypatch.setattr(bench, "all_figures", lambda: iter(figures))
    table, told = typed("sqsgd bench"), typed("sqsgd bench --json")
    assert (table.code, told.code) == (code, code)
    assert json.loads(told.out) == [figure.to_dict() for figure in figures]
    shown = {line.split()[0]: line.split(maxsplit=1)[1].split() for line in table.out.splitlines()}
    assert shown["encode"] == ["50.000", "times", ">=", "40", "met"]
    assert shown["decode"] == ["1.000", "ms"]
    assert shown.get("server", ["MISSED"])[-1] == "MISSED"


def test_every_scheme_is_measured_and_the_best_comes_first(monkeypatch):
    monkeypatch.setattr(estimation, "SETTINGS", (estimation.Setting(dim=64, epsilon=40.0, bytes=32),))
    names = {name for name, _ in estimation.schemes_at(estimation.SETTINGS[0])}
    monkeypatch.setenv("COLUMNS", "160")
    table = typed("sqsgd bench --schemes --seconds 0").out
    assert table.startswith("dim 64, epsilon 40, 256 bits: the optimum (PrivUnit) is ")
    local = [line for line in table.splitlines() if " local " in line and "biased" not in line]
    errors = [float(line.split(" ± ")[0].split()[-1]) for line in local]
    assert len(errors) > 10
    assert errors == sorted(errors)
    assert {" ".join(line.split("  ")[0].split()) for line in table.splitlines()[2:] if line} == names
    assert "central: needs secure aggregation" in table


def test_lines_fit_80_columns(monkeypatch):
    figures = [
        Figure(name="x" * length, value=99.5, unit="ns/coordinate", target=300.0) for length in (40, 80)
    ]
    monkeypatch.setattr(bench, "all_figures", lambda: iter(figures))
    lines = typed("sqsgd bench").out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
