"""Words that the author of a report sets: names of groups, and titles and axes of figures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqsgd.report.charts import Chart, SplitChart
from sqsgd.report.groups import Group
from sqsgd.report.text import clean

PARTS = {"title": "title", "x": "x_title", "y": "y_title"}
"""What can be set of a figure, and the field of the chart."""


@dataclass(frozen=True, kw_only=True)
class Wording:
    """``labels``: ``OLD=NEW`` for groups. ``figures``: ``NAME.title=TEXT``, or ``.x``, ``.y`` for axes."""

    labels: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The options of ``sqsgd report`` that set these words."""
        labels = [word for text in self.labels for word in ("--label", text)]
        return labels + [word for text in self.figures for word in ("--figure", text)]

    def renamed(self, groups: Sequence[Group]) -> list[Group]:
        """The groups under their new names; ValueError if there is no such group, or a name is taken."""
        names = {group.label: group.label for group in groups}
        for text in self.labels:
            old, new = _pair(text, names)
            names[old] = clean(new)
        twice = [name for name, count in Counter(names.values()).items() if count > 1]
        if twice:
            raise ValueError(f"label: two groups would be called {twice[0]!r}")
        return [dataclasses.replace(group, label=names[group.label]) for group in groups]

    def titled(self, charts: Sequence[Chart | SplitChart]) -> list[Chart | SplitChart]:
        """The charts with these titles and axes; ValueError if there is no such chart or part."""
        found = {chart.name: chart for chart in charts}
        for text in self.figures:
            place, equals, words = text.partition("=")
            name, _, part = place.strip().rpartition(".")
            field = PARTS.get(part, "")
            if not equals or name not in found or not hasattr(found[name], field):
                known = ", ".join(found)
                raise ValueError(
                    f"figure = {text!r} must look like NAME.title=TEXT, NAME.x=TEXT or NAME.y=TEXT; "
                    f"the names are {known}, and time has no y"
                )
            changes = {field: clean(words.strip()), **({"shows_title": True} if part == "title" else {})}
            found[name] = dataclasses.replace(found[name], **changes)  # type: ignore[arg-type]
        return list(found.values())


def _pair(text: str, names: Sequence[str] | dict[str, str]) -> tuple[str, str]:
    """OLD and NEW, either of which may hold an equals sign."""
    for at, letter in enumerate(text):
        old, new = text[:at].strip(), text[at + 1 :].strip()
        if letter == "=" and old in names and new:
            return old, new
    known = ", ".join(map(repr, names))
    raise ValueError(f"label = {text!r} must look like OLD=NEW; the groups are {known}")
