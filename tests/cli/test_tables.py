"""Tables and JSON on standard output."""

import math

import pytest

from sqsgd.cli._tables import cell, print_json, print_table


def test_cells_are_printed_verbatim(capsys):
    """Some quote servers: brackets are not read as markup, colons not as emoji."""
    print_table(("name", "reason"), [["[red]node[/red]", "[1, 2] :smile: [/]"]], title="of [bold]runs[/bold]")
    shown = capsys.readouterr().out
    for text in ("[red]node[/red]", "[1, 2] :smile: [/]", "of [bold]runs[/bold]"):
        assert text in shown


def test_numbers_are_short():
    assert [cell(value) for value in (0.125, 400.0, None, "text", 3)] == ["0.125", "400", "", "text", "3"]


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        print_json({"epsilon": math.inf})
