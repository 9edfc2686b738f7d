"""``sqsgd train``: train one model, with a progress bar and a summary at the end."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from sqsgd._internal.files import NUMBERS
from sqsgd.cli._failures import Ended, explained
from sqsgd.cli._tables import print_note, print_result, wrapped
from sqsgd.cli.options import (
    SCHEME_NAMES,
    Bytes,
    Clients,
    DataDir,
    Dataset,
    Json,
    Model,
    Rate,
    Rounds,
    SchemeOption,
    given,
    scheme_options,
    show_progress,
    stopping_between_rounds,
)
from sqsgd.cli.report import final_page
from sqsgd.training.settings import FIELDS, PAPER_EPSILON, RunConfig
from sqsgd.training.summary import ACCURACY, Headline, read_headline

if TYPE_CHECKING:
    from sqsgd.training.state import Record

LINES = 30
"""Seconds between two lines of progress where there is no terminal."""


class Command(TyperCommand):
    """Explains that a configuration key without an option belongs in the file given with ``--config``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = error.option_name.lstrip("-").replace("-", "_")
            options = {each.opts[0] for each in self.params}
            typed = {name.removesuffix("_") for name in inspect.signature(train).parameters}
            if key in FIELDS and key not in typed:
                file = "the --config file" if "--config" in options else "a file for sqsgd compare --config"
                reason = f"{error.format_message()} {key} is a key of {file}."
                raise click.UsageError(reason, ctx) from None
            raise


def train(
    context: typer.Context,
    scheme: Annotated[
        str,
        typer.Option(help="See sqsgd schemes; auto: the best stateless one.", autocompletion=SCHEME_NAMES),
    ] = RunConfig.scheme,
    dataset: Dataset = RunConfig.dataset,
    data_dir: DataDir = None,
    model: Model = RunConfig.model,
    loss: Annotated[
        str, typer.Option(help="cross-entropy, squared-error, multi-label or package.module:name.")
    ] = RunConfig.loss,
    features: Annotated[
        str | None,
        typer.Option(
            help="Public features: hog, soft-hog, font-digits, efficientnet-lite0 or "
            "package.module:factory; several with weights: soft-hog:0.7+font-digits:0.7."
        ),
    ] = None,
    clients: Clients = RunConfig.clients,
    participation: Annotated[
        str, typer.Option(help="all, a number of clients per round, or once: one round per client.")
    ] = RunConfig.participation,
    partition: Annotated[
        str, typer.Option(help="iid, dirichlet:BETA, shards:N, natural or drawn (any number of clients).")
    ] = RunConfig.partition,
    batch: Annotated[int, typer.Option(help="Batch size of a client.")] = RunConfig.batch,
    epsilon: Annotated[
        float, typer.Option(help="Privacy budget of one report; the default is the paper's.")
    ] = PAPER_EPSILON,
    bytes_: Bytes = RunConfig.bytes,
    rounds: Rounds = RunConfig.rounds,
    lr: Rate = RunConfig.lr,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = RunConfig.optimizer,
    decay: Annotated[
        str, typer.Option(help="Decay of the rate: linear (auto), to zero, or none.")
    ] = RunConfig.decay,
    ledgers: Annotated[Path | None, typer.Option(help="Folder of the clients' own ledgers.")] = None,
    bound: Annotated[float, typer.Option(help="Initial bound; 0: the scheme's own.")] = RunConfig.bound,
    seed: Annotated[int, typer.Option(help="Seed of everything but secure noise.")] = RunConfig.seed,
    option: SchemeOption = None,
    device: Annotated[
        str, typer.Option(help="Where gradients are computed: cpu, cuda, mps or auto.")
    ] = RunConfig.device,
    engine: Annotated[
        str, typer.Option(help="local, or flower: the same run over Flower.")
    ] = RunConfig.engine,
    name: Annotated[str, typer.Option(help="Name of the run in tables and figures.")] = RunConfig.name,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Noise from the operating system; the run cannot be repeated.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file with any of these keys, or one of the package, such as once-mnist."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model over simulated clients; writes a run folder and prints a summary."""
    from sqsgd.learning.problem import ModelFailed
    from sqsgd.training.sweep import experiment_file
    from sqsgd.training.train import begin

    values = given(context, FIELDS)
    if option:
        values["options"] = scheme_options(option)
    run, state = begin(values, experiment_file(config) if config else None, out, resume=resume)
    for line in () if resume else run.notes:
        print_note(line)
    try:
        with stopping_between_rounds() as signals:
            records = run.rounds(state, stop=lambda: bool(signals))
            show_progress(records, _progress(run.config.rounds), quiet=as_json, seconds=LINES)
        if not (run.folder / "summary.json").exists():
            raise Ended(f"stopped; resume with: sqsgd train --resume --out {run.folder}", 128 + signals[0])
    except ModelFailed as error:
        raise Ended(f"{error}; the last checkpoint in {run.folder} is intact") from error
    except OSError as error:
        raise Ended(f"{explained(error)[0]}; the last checkpoint in {run.folder} is intact") from error
    summary, page = json.loads((run.folder / "summary.json").read_text()), run.folder / "report.html"
    if not as_json:  # printed even if the page cannot be written
        typer.echo(wrapped(describe(summary, run.folder), 15))
    final_page(run.folder, page)
    whole = {**summary, "folder": str(run.folder), "page": str(page)}
    print_result(as_json, whole, f"page           {page}")


def _progress(rounds: int) -> Callable[[Record], tuple[int, int, str]]:
    """Describes rounds, each with the last result that was measured."""
    reached = ""

    def describe(record: Record) -> tuple[int, int, str]:
        nonlocal reached
        if found := read_headline(record.to_dict()):
            reached = f"{found[0].name} {found[0].shown(found[1])}, "
        spent = f"epsilon {record.epsilon_total:,g}, {record.bytes_up:,} bytes per report"
        done = record.round + 1
        return done, rounds, f"round {done:,} of {rounds:,}: {reached}{spent}"

    return describe


def _measured(summary: dict[str, Any]) -> Iterator[str]:
    """The headline on held-out data, then the other metrics and the loss."""
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
    """The summary of a run as text."""
    shares = ", ".join(
        f"{step} {summary[f'share_{step}']:.0%}" for step in ("gradient", "encode", "aggregate")
    )
    private = summary["notion"] != "none"
    epsilon = f"{summary['epsilon']:g}" if private else "infinite (not private)"
    total = f"{summary['epsilon_all_rounds']:,g}" if private else "infinite"
    if summary["participation"] == "once" and summary["notion"] == "local":
        spent = f"{epsilon} per report, which is the total: no user sends two"
    else:
        spent = f"{epsilon} per round; {total} for a client that takes part in all rounds"
        if summary["epsilon_total"] != summary["epsilon_all_rounds"]:
            spent += f"; {summary['epsilon_total']:,g} for the client that took part most often"
    refused = f"{summary['refused']:,} reports, by their clients' own ledgers" if summary["refused"] else None
    ratio = f"1/{summary['bytes_up_ratio']:.0f} of float32"
    lines = {
        "scheme": summary["scheme"],
        "epsilon": spent,
        "refused": refused,
        "noise": summary["noise"],
        "order": summary.get("order_note"),
        "central": summary.get("central_note"),
        "payload": f"{summary['bytes_up']} bytes per client and round, {ratio}",
        "learning rate": f"{summary['lr']:.3g}"
        + (", falling linearly to 0" if summary.get("decay") == "linear" else ""),
        "time": f"{summary['seconds']:.0f} s: {shares}",
        "written to": folder,
    }
    rest = (f"{name:14} {text}" for name, text in lines.items() if text is not None)
    return "\n".join([*_measured(summary), *rest])
