"""``sqsgd conformance``: is an encoder in another language right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsgd._internal.files import write_atomically
from sqsgd.cli._tables import print_result
from sqsgd.cli.options import Json

_SHOWN = 20


def conformance(
    answers: Annotated[
        Path | None, typer.Argument(help="Another implementation's answers, a JSON file.", show_default=False)
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the vectors to this file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Check another implementation's answers to the conformance vectors, and say what differs.

    Exits with 1 if something differs. docs/encoder.md describes vectors and answers.
    """
    from sqsgd.audit.conformance import PATH, compare, read_answers, read_vectors

    if (answers is None) == (export is None):
        raise ValueError("name either a file of answers to check, or --export FILE to get the vectors")
    vectors = read_vectors()
    if export is not None:
        if export.exists() and not export.is_file():  # such as /dev/stdout, which must not be replaced
            export.write_bytes(PATH.read_bytes())
        else:
            write_atomically(export, PATH.read_bytes())
        print_result(as_json, {"written": str(export)}, f"written to {export}")
        return
    assert answers is not None  # noqa: S101  # for the type checker
    found = compare(read_answers(answers), vectors)
    lines = [str(each) for each in found.differences[:_SHOWN]]
    if len(found.differences) > _SHOWN:
        lines.append(f"... and {len(found.differences) - _SHOWN} more")
    if found.unanswered:
        lines.append(f"not answered: {', '.join(found.unanswered)}")
    verdict = "conforms" if found.conforms else "does not conform"
    lines.append(f"{found.agree} answers agree, {len(found.differences)} differ: {verdict}")
    summary = {
        "conforms": found.conforms,
        "agree": found.agree,
        "differences": [vars(each) for each in found.differences],
        "unanswered": found.unanswered,
    }
    print_result(as_json, summary, *lines)
    raise typer.Exit(0 if found.conforms else 1)
