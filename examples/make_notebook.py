"""Builds planner_trade_offs.ipynb from planner_trade_offs.py, with its output and plots.

Jupyter is not needed:

python examples/make_notebook.py
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("planner_trade_offs.py")
NOTEBOOK = SOURCE.with_suffix(".ipynb")
Cell = dict[str, Any]


def cells(text: str) -> list[tuple[str, str]]:
    """("markdown" | "code", text) of each cell; cells begin with # %%."""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)[1:]
    found = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if "markdown" in kind:
            found.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            found.append(("code", body.strip()))
    return found


def executed(text: str) -> list[Cell]:
    """The cells in notebook format, executed in order in one namespace."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.show = lambda: None  # figures are saved after each cell
    namespace: dict[str, Any] = {"__name__": "__main__"}
    result: list[Cell] = []
    for number, (kind, body) in enumerate(cells(text), start=1):
        cell: Cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": body}
        if kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(body, f"cell {number}", "exec"), namespace)  # noqa: S102
            cell |= {"execution_count": number, "outputs": _outputs(printed.getvalue(), plt)}
        result.append(cell)
    return result


def _outputs(printed: str, plt: Any) -> list[Cell]:
    outputs: list[Cell] = []
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed})
    for figure in map(plt.figure, plt.get_fignums()):
        picture = io.BytesIO()
        figure.savefig(picture, dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    plt.close("all")
    return outputs


def notebook() -> Cell:
    """The whole document, in Jupyter's format 4.5."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": executed(SOURCE.read_text())}


if __name__ == "__main__":
    NOTEBOOK.write_text(json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n")
