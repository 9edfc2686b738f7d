"""``sqsgd doctor``, ``schemes`` and ``data``: what works on this machine, and what there is to choose."""

import importlib
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sqsgd._internal.checks import integer, real
from sqsgd.cli.options import Bytes, DataDir, Dim, Epsilon, Json, Progress, group
from sqsgd.cli.output import EXTRAS, INSTALL, cell, print_json, print_result, print_table, wrapped
from sqsgd.learning.files import FETCHABLE


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    group: str
    name: str
    state: str  # good, missing or broken
    found: str
    fix: str = ""  # the command that fixes it; empty if nothing is wrong


def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check the installation, the extras and the datasets, and show how to fix problems.

    Exits with 1 if a core component does not work. Extras and datasets are optional.
    """
    with Progress(quiet=as_json):
        checks = list(examine(data_dir))
    works = all(check.state == "good" for check in checks if check.group == "basics")
    if as_json:
        print_json({"works": works, "checks": [asdict(check) for check in checks]})
    else:
        rows = [[check.state, check.group, check.name, check.found] for check in checks]
        print_table(("state", "group", "what", "found"), rows)
        typer.echo("\nThe basics work." if works else "\nThe basics do NOT work.")
        for check in checks:
            if check.fix:
                typer.echo(wrapped(f"To fix {check.name}:\n    {check.fix}", 4))
    raise typer.Exit(0 if works else 1)


def examine(data_dir: str | Path | None = None) -> Iterator[Check]:
    """Run every check, the basic ones first. A check that fails does not stop the others."""
    from sqsgd.learning.files import dataset_status

    for name, attempt in (("entropy", _entropy), ("kernels", _kernels)):
        yield _tried("basics", name, attempt, "pip install --upgrade sqsgd")
    for extra, modules in EXTRAS.items():
        yield _tried("extras", extra, partial(_imports, modules), INSTALL.format(extra))
    for each in dataset_status(data_dir):
        if each.available:
            yield Check("data sets", each.name, "good", str(each.where))
        else:
            lacks = f"{len(each.missing)} files: {each.missing[0]}"
            yield Check("data sets", each.name, "missing", lacks, each.how)


def _tried(group: str, name: str, attempt: Callable[[], str], fix: str) -> Check:
    try:
        return Check(group, name, "good", attempt())
    except Exception as error:
        state = "missing" if isinstance(error, ModuleNotFoundError) else "broken"
        return Check(group, name, state, str(error), fix)


def _entropy() -> str:
    """Read without blocking: shortly after boot the kernel may not have enough entropy yet."""
    if hasattr(os, "getrandom"):
        os.getrandom(32, os.GRND_NONBLOCK)
    from sqsgd.core.random import secure_rng

    if bytes(secure_rng().take(16)) == bytes(secure_rng().take(16)):
        raise RuntimeError("two generators gave the same 16 bytes")
    return f"random numbers of {platform.system()}, Python {platform.python_version()}"


def _kernels() -> str:
    import numpy as np

    from sqsgd import Task, make_scheme, secure_rng
    from sqsgd._internal.kernels.rotation import rotate

    scheme = make_scheme("sqsgd", dim=1000, epsilon=200.0, bytes=128)
    task = Task(round=0, client=0, seed=0, dim=1000, bound=1.0)
    x = np.ones(1000, np.float32) / np.float32(1000**0.5)
    mean = scheme.aggregate((task, scheme.encode(x, task, secure_rng())) for _ in range(20))
    if not np.isfinite(mean).all() or mean.sum() <= 0:
        raise RuntimeError("the mean of 20 reports of one vector does not point in its direction")
    uncached = type(getattr(rotate, "_cache", None)).__name__ == "NullCache"
    advice = "machine code is compiled by each process: set NUMBA_CACHE_DIR to a folder"
    return advice if uncached else "machine code is cached on disk"


def _imports(modules: tuple[str, ...]) -> str:
    for module in modules:
        importlib.import_module(module)
    return "usable"


app = group("List and download datasets.")


@app.command("list")
def list_data(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the datasets with their locations, missing files, and how to get them."""
    from sqsgd.learning.files import dataset_status

    rows = dataset_status(data_dir)
    where = [str(row.where) if row.where else f"missing {', '.join(row.missing)}; {row.how}" for row in rows]
    lines = [wrapped(f"{row.name:14} {place}", 15) for row, place in zip(rows, where, strict=True)]
    print_result(as_json, [{**asdict(row), "where": str(row.where or "")} for row in rows], *lines)


@app.command("fetch")
def fetch_data(
    name: Annotated[
        str,
        typer.Argument(help="Its name.", metavar="|".join(FETCHABLE), autocompletion=lambda: list(FETCHABLE)),
    ],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a dataset from public mirrors, verify it, and resume interrupted downloads."""
    from sqsgd.learning.files import fetch

    where = fetch(name, data_dir)
    print_result(as_json, {"name": name, "where": str(where)}, f"{name}: {where}")


def schemes(dim: Dim = 119850, epsilon: Epsilon = 400.0, bytes_: Bytes = 256, as_json: Json = False) -> None:
    """List the schemes, with the guarantee and message size of each under a budget."""
    from sqsgd._internal.files import worded
    from sqsgd.schemes import SCHEMES, make_scheme

    integer("dim", dim, 1, 2**24)
    real("epsilon", epsilon, 0.01, 1e5)
    rows: list[dict[str, object]] = []
    for name, function in SCHEMES.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        try:
            scheme = make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes_)
        except ValueError as error:
            rows.append({"name": name, "notion": "impossible here", "epsilon": 0.0, "summary": str(error)})
            continue
        privacy = scheme.privacy
        rows.append({
            "name": name, "notion": privacy.notion, "epsilon": privacy.epsilon, "delta": privacy.delta,
            "arithmetic": privacy.arithmetic if privacy.is_private else "",
            "message_bytes": scheme.bits // 8, "code_bytes": -(-scheme.code_bits // 8),
            "keeps_residual": scheme.keeps_state, "summary": summary,
        })  # fmt: skip
    if as_json:
        print_json([{**row, "epsilon": worded(row["epsilon"])} for row in rows])
        return
    for row in rows:
        size = f", {row['message_bytes']:,} bytes" if "message_bytes" in row else ""
        private = f", epsilon {cell(row['epsilon'])}" if row.get("arithmetic") else ""
        inexact = " in real arithmetic" if row.get("arithmetic") == "real" else ""
        notion = "no privacy" if row["notion"] == "none" else row["notion"]
        typer.echo(wrapped(f"{row['name']:15}  {notion}{private}{inexact}{size}", 17))
        typer.echo(wrapped(f"  {str(row['summary']).replace('``', '')}", 2))
