"""How far a loop has come."""

import re

import rich
from rich.console import Console
from rich.progress import MofNCompleteColumn
from sqsgd.cli.options import Pace, progress_bar


def test_it_is_time_at_once_and_then_after_the_wait():
    times = iter([5.0, 5.1, 7.9, 8.0, 10.9, 99.0])
    pace = Pace(3.0, clock=lambda: next(times))
    assert [pace.due() for _ in range(6)] == [True, False, False, True, False, True]


def test_a_bar_leaves_room_for_what_is_said_in_80_columns(monkeypatch):
    console = Console(width=80, force_terminal=True, color_system=None, record=True)
    monkeypatch.setattr(rich, "_console", console)
    text = "accuracy 83.20%, epsilon 240,000, 102 bytes per report"
    with console.capture() as shown, progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("starting", total=1200, completed=300)
        bar.update(task, description=text)
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in shown.get().splitlines()]
    last = next(line for line in reversed(lines) if line.strip())
    assert len(last) <= 80
    assert f"300/1200 -:--:-- {text}" in last
