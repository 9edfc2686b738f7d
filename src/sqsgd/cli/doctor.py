"""``sqsgd doctor``: what works on this machine, what is missing, and the command that fixes it.

Checks exercise the real thing: they encode reports, load torch, and compare checksums of dataset files.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer

from sqsgd.cli._tables import print_json, print_table, wrapped
from sqsgd.cli.options import DataDir, Json

EXTRAS = ("train", "report", "flower", "collect")
ENGINE_NEEDS = {"local": ("train",), "flower": ("train", "flower")}  # extras
MODULES = {"train": ("torch", "safetensors.numpy", "tomli_w"), "flower": ("flwr",)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check."""

    group: str
    name: str
    state: str  # good, missing or broken
    found: str
    needed: str = ""
    fix: str = ""  # the command that fixes it; empty if nothing is wrong
    basic: bool = False  # nothing works without it


def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check what is installed, which engines and datasets are usable, and how to fix what is missing.

    Exits with 1 if something is wrong that everything depends on; extras and datasets may be missing.
    """
    checks = list(examine(data_dir))
    works = all(check.state == "good" for check in checks if check.basic)
    if as_json:
        print_json({"works": works, "checks": [asdict(check) for check in checks]})
        raise typer.Exit(0 if works else 1)
    rows = [[check.state, check.group, check.name, check.found, check.needed] for check in checks]
    print_table(("state", "group", "what", "found", "needed"), rows)
    typer.echo("\nThe basics work." if works else "\nThe basics do NOT work.")
    fixes = dict[str, list[str]]()
    for check in checks:
        if check.fix:
            fixes.setdefault(check.fix, []).append(check.name)
    if fixes:
        typer.echo("To fix what is missing or broken:")
    for fix, names in fixes.items():
        typer.echo(wrapped(f"  {', '.join(names)}:\n    {fix}", 4))
    raise typer.Exit(0 if works else 1)


def examine(data_dir: str | Path | None = None) -> Iterator[Check]:
    """Run every check, the basic ones first; a check that fails does not stop the others."""
    yield from _packages("")
    for name, attempt in (("entropy", _entropy), ("kernels", _kernels)):
        yield _tried("basics", name, attempt, _install(), basic=True)
    for extra in EXTRAS:
        yield from _packages(extra)
    for engine, extras in ENGINE_NEEDS.items():
        yield _tried("engines", engine, partial(_imports, extras), _install(*extras))
    yield from _data_sets(data_dir)
    if not find_chromium():
        fix = "for the tests that open a report: apt install chromium, or set SQSGD_CHROMIUM to its path"
        yield Check(group="for contributors", name="chromium", state="missing", found="", fix=fix)


def find_chromium() -> str | None:
    """$SQSGD_CHROMIUM, or the first of the usual names on the PATH, or None."""
    return os.environ.get("SQSGD_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def _tried(
    group: str, name: str, attempt: Callable[[], str], fix: str, *, needed: str = "", basic: bool = False
) -> Check:
    """Run a check; if it raises an exception, report that as what is wrong."""
    try:
        state, found, fix = "good", attempt(), ""
    except Exception as error:
        state, found = "missing" if isinstance(error, ModuleNotFoundError) else "broken", str(error)
    return Check(group=group, name=name, state=state, found=found, needed=needed, fix=fix, basic=basic)


def _install(*extras: str) -> str:
    """The pip command that installs these extras from the same source as this copy."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        origin = json.loads(importlib.metadata.distribution("sqsgd").read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            return f"pip install --editable '{unquote(urlsplit(origin['url']).path)}{wanted}'"
        if url := origin.get("url"):
            return f"pip install 'sqsgd{wanted} @ {url}'"
    return f"pip install --upgrade 'sqsgd{wanted}'"


def _packages(extra: str) -> Iterator[Check]:
    """Compare the requirements of an extra, or of the package itself, with what is installed."""
    from packaging.requirements import Requirement

    def version(requirement: Requirement) -> str:
        found = importlib.metadata.version(requirement.name)
        if not requirement.specifier.contains(found, prereleases=True):
            raise ValueError(found)
        return found

    group = f"extra {extra}" if extra else "basics"
    try:
        lines = importlib.metadata.requires("sqsgd") or []
    except importlib.metadata.PackageNotFoundError:
        why, fix = "this source tree is not installed", "pip install --editable ."
        yield Check(group=group, name="sqsgd", state="missing", found=why, fix=fix)
        return
    for one in map(Requirement, lines):
        always = one.marker is None or one.marker.evaluate({"extra": ""})
        if always == (not extra) and (one.marker is None or one.marker.evaluate({"extra": extra})):
            fix, needed = _install(*filter(None, [extra])), str(one.specifier)
            yield _tried(group, one.name, partial(version, one), fix, needed=needed, basic=not extra)


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
    if type(getattr(rotate, "_cache", None)).__name__ == "NullCache":
        return "machine code is compiled by each process: set NUMBA_CACHE_DIR to a folder"
    return "machine code is cached on disk"


def _imports(extras: tuple[str, ...]) -> str:
    for module in (name for extra in extras for name in MODULES[extra]):
        importlib.import_module(module)
    return "usable"


def _data_sets(data_dir: str | Path | None) -> Iterator[Check]:
    from sqsgd.learning.files import dataset_status

    for status in dataset_status(data_dir):
        state, found, fix = "good", str(status.where), ""
        if not status.available:
            state, found, fix = "missing", f"{len(status.missing)} files: {status.missing[0]}", status.how
        yield Check(group="data sets", name=status.name, state=state, found=found, fix=fix)
