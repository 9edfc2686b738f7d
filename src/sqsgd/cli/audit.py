"""``sqsgd audit``: try to break a scheme; ``sqsgd conformance``: is an encoder in another language right?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli.options import Bytes, Dim, Epsilon, Json, Progress, SchemeName, SchemeOption, scheme_options
from sqsgd.cli.output import FAILED, WRONG_USAGE, print_result, print_table, wrapped

if TYPE_CHECKING:
    from sqsgd.audit import Audit, Finding


def audit(
    scheme: SchemeName = "sqsgd",
    trials: Annotated[int, typer.Option(help="Reports per attempt; other samples scale with it.")] = 20_000,
    dim: Dim = 119850,
    epsilon: Epsilon = 400.0,
    bytes_: Bytes = 256,
    option: SchemeOption = None,
    seed: Annotated[int, typer.Option(help="Seed for vectors and tasks; the noise is never seeded.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report page and the results.")] = None,
    as_json: Json = False,
) -> None:
    """Try to break a scheme as implemented. Exits with 1 if a guarantee is violated; passing is not a proof.

    A scheme without a guarantee cannot pass: the result is "nothing to audit", and the exit status is 2.

    It checks likelihood ratios, real reports, output distributions, noise reuse and leaks outside the codes,
    and tries to reconstruct directions.
    """
    from sqsgd.audit import Subject, steps
    from sqsgd.audit.checklist import gathered
    from sqsgd.audit.findings import write_audit
    from sqsgd.schemes import check_name, make_scheme

    check_name("scheme", scheme)
    own = {"name": "--scheme", "dim": "--dim", "epsilon": "--epsilon", "bytes": "--bytes"}
    options: dict[str, Any] = scheme_options(option or [], own)
    subject = Subject(
        name=scheme, make=partial(make_scheme, scheme, **options),
        dim=dim, epsilon=epsilon, bytes=bytes_, trials=trials, seed=seed,
    )  # fmt: skip
    planned = steps(subject)  # raises for an invalid scheme or budget
    if out is not None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"out = {out} is a file; name a folder")
        out.mkdir(parents=True, exist_ok=True)  # fail now, not at the end

    def findings() -> Iterator[Finding]:
        for number, step in enumerate(planned, start=1):
            progress.show(f"{number} of {len(planned)}: {step.name}")
            yield from step.findings(subject)

    with Progress(quiet=as_json) as progress:
        found = gathered(subject, findings())
    written = [str(path) for path in write_audit(found, out)] if out is not None else []
    if not as_json:
        _print(found)
    lines = (wrapped(found.verdict), *(f"written to {path}" for path in written))
    print_result(as_json, {**found.to_dict(), "files": written}, *lines)
    raise typer.Exit(FAILED if found.violated else 0 if found.passed else WRONG_USAGE)


def _print(found: Audit) -> None:
    from sqsgd.audit.findings import shown

    typer.echo(f"{found.result.upper()}\n")

    promise = "promises nothing" if found.notion == "none" else f"promises epsilon {found.epsilon:,.12g}"
    print_table(
        ("outcome", "check", "measured", "limit", "explanation"),
        [[f.outcome, f.name, shown(f.measured), shown(f.limit), f.sentence] for f in found.findings],
        title=f"{found.scheme}, dim {found.dim:,}, {found.message_bytes:,} bytes: {promise} ({found.notion})",
    )


def conformance(
    answers: Annotated[
        Path | None, typer.Argument(help="JSON file with the answers of another implementation.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write the vectors to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Check the answers of another implementation to the conformance vectors and list the differences.

    Exits with 1 if something differs. docs/encoder.md describes vectors and answers.
    """
    from sqsgd.audit.conformance import PATH, compare, read_answers, read_vectors

    if (answers is None) == (export is None):
        raise ValueError("name either a file of answers to check, or --export FILE to get the vectors")
    vectors = read_vectors()
    if export is not None:
        export.write_bytes(PATH.read_bytes())
        print_result(as_json, {"written": str(export)}, f"written to {export}")
        return
    found = compare(read_answers(answers), vectors)  # type: ignore[arg-type]
    lines = [str(each) for each in found.differences[:20]]
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
