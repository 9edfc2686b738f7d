"""``sqsgd audit``: try to break a scheme."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli._tables import print_json, print_table, wrapped
from sqsgd.cli.options import Bytes, Dim, Epsilon, Json, SchemeName, SchemeOption, scheme_options

if TYPE_CHECKING:
    from sqsgd.audit import Audit, Finding, Subject

_OWN = {"name": "--scheme", "dim": "--dim", "epsilon": "--epsilon", "bytes": "--bytes"}


def audit(
    scheme: SchemeName = "sqsgd",
    trials: Annotated[
        int, typer.Option(help="Reports per distinguishing attempt; other sample sizes scale with it.")
    ] = 20_000,
    dim: Dim = 119850,
    epsilon: Epsilon = 400.0,
    bytes_: Bytes = 256,
    option: SchemeOption = None,
    inversion: Annotated[
        bool,
        typer.Option("--inversion/--no-inversion", help="Try to recover images (takes a minute)."),
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of vectors and tasks; the noise is never seeded.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for a page, the images and the numbers.")] = None,
    as_json: Json = False,
) -> None:
    """Try to break a scheme as implemented. Exits with 1 if a promise is broken; a pass proves nothing.

    A scheme without a guarantee cannot pass: the result is "nothing to audit", and passed is false.

    It checks likelihood ratios of worst-case pairs, and bounds epsilon from below with real reports.

    It checks output distributions, noise reuse (clients, rounds, threads, forks) and leaks outside the codes.

    It tries to reconstruct directions and images.
    """
    from sqsgd._internal import checks
    from sqsgd.audit import Subject
    from sqsgd.audit.checklist import gathered
    from sqsgd.schemes import check_name, make_scheme

    check_name("scheme", scheme)
    checks.integer("bytes", bytes_, 1, 2**37)
    options: dict[str, Any] = scheme_options(option or [], _OWN)
    subject = Subject(
        name=scheme,
        make=partial(make_scheme, scheme, **options),
        dim=dim,
        epsilon=epsilon,
        bytes=bytes_,
        trials=trials,
        seed=seed,
    )
    if out is not None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"out = {out} is a file; name a folder")
        out.mkdir(parents=True, exist_ok=True)  # fail now, not at the end
    found = gathered(subject, _shown(subject, inversion=inversion))
    written = list[Path]()
    if out is not None:
        from sqsgd.audit.audit_page import write_audit

        written = write_audit(found, out)
    if as_json:
        print_json({**found.to_dict(), "files": [str(path) for path in written]})
    else:
        _print(found)
        for path in written:
            typer.echo(f"written to {path}")
    raise typer.Exit(1 if found.violated else 0)


def _shown(subject: Subject, *, inversion: bool) -> Iterator[Finding]:
    """Yield the findings; on a terminal, show the current step on standard error."""
    from sqsgd.audit import steps

    planned = steps(subject, inversion=inversion)  # raises for an invalid scheme or budget
    if not sys.stderr.isatty():  # and no thread either, which a status has: some steps fork
        for step in planned:
            yield from step.findings(subject)
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        for number, step in enumerate(planned, start=1):
            status.update(f"{number} of {len(planned)}: {step.name}")
            yield from step.findings(subject)


def _print(found: Audit) -> None:
    from sqsgd.audit.findings import shown

    typer.echo(f"{found.result.upper()}\n")
    promise = "promises nothing" if found.notion == "none" else f"promises epsilon {found.epsilon:,.12g}"
    print_table(
        ("outcome", "check", "measured", "limit", "explanation"),
        [
            [each.outcome, each.name, shown(each.measured), shown(each.limit), each.sentence]
            for each in found.findings
        ],
        title=f"{found.scheme}, dim {found.dim:,}, {found.message_bytes:,} bytes: {promise} ({found.notion})",
    )
    typer.echo(wrapped(found.verdict))
