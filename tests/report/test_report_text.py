"""Numbers and untrusted strings as text for readers."""

import math

import pytest

from sqsgd.report.text import clean, counted, escape, listed, number, percent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (999.4, "999.4"), (1000.4, "1,000"), (-24000.0, "-24,000"), (1e-7, "1e-07"), (273, "273"),
        (math.inf, "infinite"), (-math.inf, "-infinite"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_numbers(value, shown):
    assert number(value) == shown


def test_shares():
    assert percent(1.0) == "100.0\N{NO-BREAK SPACE}%"
    assert percent(0.00049) == "0.0\N{NO-BREAK SPACE}%"
    assert percent(math.nan) == "–"


@pytest.mark.parametrize("nasty", ["\x00", "\n", "\t", "\x1b", "\u202e", "\u2028", "\udcff", "\ufeff"])
def test_invisible_characters_are_replaced(nasty):
    """Including the right-to-left mark, and a lone surrogate of a file name."""
    assert clean(f"a{nasty}b") == "a\ufffdb"
    escape(f"a{nasty}b").encode()


def test_spaces_and_letters_of_any_script_stay():
    text = "ε 400\N{NO-BREAK SPACE}%\N{IDEOGRAPHIC SPACE}数 é ± –"
    assert clean(text) == text


def test_markup_is_escaped():
    assert escape("""<a b="c" d='e'>&""") == "&lt;a b=&quot;c&quot; d=&#x27;e&#x27;&gt;&amp;"
    assert escape(3) == "3"


def test_lists_and_counts():
    assert [listed(names) for names in ([], ["a"], ["a", "b"])] == ["", "a", "a and b"]
    assert [counted(amount, "run") for amount in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]
