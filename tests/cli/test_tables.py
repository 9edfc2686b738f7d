"""Tables and JSON on standard output."""

import math
import os

import pytest

from sqsgd.cli._tables import print_json, print_note, print_table, width, wrapped


def test_cells_are_printed_verbatim(capsys):
    """Some quote servers: brackets are not read as markup, colons not as emoji."""
    print_table(("name", "reason"), [["[red]node[/red]", "[1, 2] :smile: [/]"]], title="of [bold]runs[/bold]")
    shown = capsys.readouterr().out
    for text in ("[red]node[/red]", "[1, 2] :smile: [/]", "of [bold]runs[/bold]"):
        assert text in shown


def test_control_characters_are_not(capsys):
    print_table(("reason",), [["\x1b[2Jcleared\x07"]])
    assert capsys.readouterr().out == "reason\n\ufffd[2Jcleared\ufffd\n"


ROWS = [["sqsgd-stateless", "400", "The rotated direction of the whole vector, in as few bytes as it takes."]]


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 200])
def test_tables_fit_the_terminal_and_cut_no_word(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(("name", "epsilon", "summary"), ROWS, title="A table of one row")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    words = {word for text in ("name", "epsilon", "summary", *ROWS[0]) for word in text.split()}
    if columns > 30:
        assert words <= set(shown.split())
        assert shown.splitlines()[1].split() == ["name", "epsilon", "summary"]
    else:  # not even the longest words fit side by side
        assert words - {"name"} <= set(shown.split())
        assert shown.splitlines()[1] == "sqsgd-stateless"


def test_a_word_that_is_wider_than_the_terminal_stays_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("path",), [["/a/path/that/is/longer/than/the/terminal"]])
    assert "/a/path/that/is/longer/than/the/terminal" in capsys.readouterr().out


def test_the_width_without_a_terminal_is_80(monkeypatch):
    """As in a pipe without a terminal at any end; ``test_main`` has one with a terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def none(_descriptor):
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", none)
    assert width() == 80


def test_paragraphs_are_broken_between_words_and_indented(monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    assert wrapped("short\nepsilon    400 per round; 80 in all", 11) == (
        "short\nepsilon    400 per\n           round; 80 in\n           all"
    )


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        print_json({"epsilon": math.inf})


def test_notes_are_broken_on_a_terminal_alone(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = "too noisy " * 20
    print_note(text)
    assert capsys.readouterr().err == f"{text}\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    print_note(text)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 80
