"""``sqsgd train``: train one model; ``sqsgd report``: the page of one or more runs."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sqsgd._internal.files import NUMBERS
from sqsgd.cli import options
from sqsgd.cli.output import Ended, explained, print_result, seconds, wrapped
from sqsgd.training.settings import FIELDS, PAPER_EPSILON, RunConfig
from sqsgd.training.summary import ACCURACY, Headline, reached, read_headline, told


@options.takes(RunConfig, epsilon=PAPER_EPSILON)
def train(
    context: typer.Context,
    option: options.SchemeOption = None,
    column: options.Column = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file with these keys, or the name of an included file such as once-mnist."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    as_json: options.Json = False,
    **_settings: Any,
) -> None:
    """Train a model with simulated clients, write a run folder, and print a summary."""
    values = {**typed_values(context, option), **options.columns(column or [])}
    with options.Progress(quiet=as_json) as progress:
        progress.show("loading torch", now="torch" not in sys.modules)  # meanwhile no other thread may run
        from sqsgd.learning.problem import ModelFailed
        from sqsgd.runs.sweep import experiment_file
        from sqsgd.runs.train import begin

        run = begin(values, experiment_file(config) if config else None, out, resume=resume)
        for line in () if resume else [*run.notes, *_without_effect(values, run.config)]:
            typer.echo(line, err=True)
        try:
            with options.stopping_between_rounds() as signals:
                measured, rounds = "", run.config.rounds
                for record in run.rounds(stop=lambda: bool(signals)):
                    measured = reached(record, measured)
                    progress.show(told(record, rounds, measured), record.round + 1, rounds)
            if not (run.folder / "summary.json").exists():
                raise Ended(
                    f"stopped; resume with: sqsgd train --resume --out {run.folder}", 128 + signals[0]
                )
        except (ModelFailed, OSError) as error:
            reason = explained(error)[0] if isinstance(error, OSError) else error
            raise Ended(f"{reason}; the last checkpoint in {run.folder} is intact") from error
    summary, page = json.loads((run.folder / "summary.json").read_text()), run.folder / "report.html"
    if not as_json:  # printed even if the page cannot be written
        typer.echo(wrapped(describe(summary, run.folder), 15))
    final_page(run.folder, page, quiet=as_json)
    whole = {**summary, "folder": str(run.folder), "page": str(page), "seconds_command": seconds()}
    steps = ("gradient", "encode", "aggregate")
    shares = ", ".join(
        f"{each} {summary[name]:.0%}" for each in steps if (name := f"share_{each}") in summary
    )
    parts = f"time           {seconds():.0f} s, {summary['seconds']:.0f} s of them for rounds: {shares}"
    print_result(as_json, whole, parts, f"page           {page}")


def _without_effect(values: dict[str, Any], config: RunConfig) -> Iterator[str]:
    """A sentence about each option that was typed for another unit of privacy."""
    names: tuple[str, ...]
    if config.per_record:
        names, why = ("batch",), "each client draws its records itself: set sampling, their share"
    else:
        names = ("delta", "sampling", "batching", "normalise")
        why = "it is for a guarantee per record, with scheme = 'sqsgd-record'"
    yield from (f"{name} is ignored: {why}" for name in names if name in values)


def typed_values(context: typer.Context, option: list[str] | None) -> dict[str, Any]:
    """Return the configuration that was typed; the scheme's options under ``options``."""
    values = options.given(context, FIELDS)
    return {**values, "options": options.scheme_options(option)} if option else values


def _measured(summary: dict[str, Any]) -> Iterator[str]:
    if (found := read_headline(summary)) is None:
        return
    headline, value = found
    lower = " (lower is better)" if headline.better == "lower" else ""
    yield f"{headline.name:14} {headline.shown(value)}{lower} on {summary['held_out']}"
    for name, other in summary.get("metrics", {}).items():
        if name != headline.name:
            yield f"{name:14} {Headline(name=name).shown(NUMBERS.get(other, other))}"
    if summary.get("test_loss") is not None and headline != ACCURACY and headline.name != "loss":
        yield f"{'loss':14} {summary['test_loss']:.4g}"


def describe(summary: dict[str, Any], folder: Path) -> str:
    private = summary["notion"] != "none"
    epsilon = f"{summary['epsilon']:g}" if private else "infinite (not private)"
    total = f"{summary['epsilon_all_rounds']:,g}" if private else "infinite"
    if summary["participation"] == "once" and summary["notion"] == "local":
        reports = summary.get("reports", 1)
        spent = f"{epsilon} per report; {total} in total: no user sends more than {reports:,}"
        spent = spent if reports > 1 else f"{epsilon} per report, which is the total: no user sends two"
        if summary.get("protects") == "row":
            spent = f"{epsilon} for each row, not for an owner of several: no column names the owners"
    elif summary["notion"] == "record":
        delta = f"{summary['delta']:g}"
        spent = f"({total}, {delta}) for each record in the whole run; ({epsilon}, {delta}) for one round"
    else:
        spent = f"{epsilon} per round; {total} for a client that takes part in all rounds"
        if summary["epsilon_total"] != summary["epsilon_all_rounds"]:
            spent += f"; {summary['epsilon_total']:,g} for the client that took part most often"
    refused = f"{summary['refused']:,} reports, by their clients' own ledgers" if summary["refused"] else None
    sender = "report" if summary.get("reports", 1) > 1 else "client and round"
    ratio = f"1/{summary['bytes_up_ratio']:.0f} of float32"
    falling = ", falling linearly to 0" if summary.get("decay") == "linear" else ""
    lines = {
        "scheme": summary["scheme"],
        "epsilon": spent,
        "refused": refused,
        "noise": summary["noise"],
        "order": summary.get("order_note"),
        "central": summary.get("central_note"),
        "payload": f"{summary['bytes_up']} bytes per {sender}, {ratio}",
        "learning rate": f"{summary['lr']:.3g}{falling}",
        "written to": folder,
    }
    rest = (f"{name:14} {text}" for name, text in lines.items() if text is not None)
    return "\n".join([*_measured(summary), *rest])


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the results as CSV.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Folder for PDF figures.")] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for PNG figures.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Folder for SVG figures.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write one self-contained page about runs: results, curves, privacy statement, configuration."""
    from sqsgd.report.charts import all_charts, write_charts
    from sqsgd.report.groups import group_runs
    from sqsgd.report.page import write_page, write_tables
    from sqsgd.training.reading import read_runs

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"out = {str(out)!r} must end in .html; an existing file is overwritten")
    wanted = {"csv": csv, "pdf": pdf, "png": png, "svg": svg}
    folders = {kind: folder for kind, folder in wanted.items() if folder is not None}
    for name, folder in folders.items():
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{name} = {str(folder)!r} is a file; name a folder")
    readable, unreadable = read_runs(runs)
    groups = group_runs(readable)
    written = [write_page(groups, unreadable, runs, out, title)]
    for each in unreadable:
        typer.echo(f"not shown: {each}", err=True)
    for kind, folder in folders.items():
        tables = kind == "csv"
        written += write_tables(groups, folder) if tables else write_charts(all_charts(groups), folder, kind)
    print_result(as_json, [str(path) for path in written], *(f"written to {path}" for path in written))


def final_page(folder: Path, out: Path, title: str | None = None, *, quiet: bool = False) -> None:
    """Write the page of finished runs; if that fails, say how to write it later, and end with status 1."""
    try:
        with options.Progress(quiet=quiet) as progress:
            progress.show("writing the page")
            from sqsgd.report.page import write_report

            write_report([folder], out, title)
    except (OSError, ImportError) as error:
        again = ["sqsgd", "report", str(folder), "--out", str(out), *(["--title", title] if title else [])]
        reason = explained(error)[0]
        raise Ended(f"{reason} (the runs are complete; write the page with: {shlex.join(again)})") from error
