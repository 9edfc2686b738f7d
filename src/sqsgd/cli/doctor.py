"""``sqsgd doctor``: what works on this machine, what is missing, and the command that fixes it.

Checks exercise the real thing where that takes at most a second or two: they compile kernels, encode and
decode reports, load torch, and compare the checksums of dataset files.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import typer

from sqsgd.cli._tables import print_json, print_table, wrapped
from sqsgd.cli.options import DataDir, Json

LEAST_PYTHON = (3, 11)
EXTRAS = ("train", "report", "flower", "collect")
ENGINE_NEEDS = {"local": ("train",), "flower": ("train", "flower")}
"""The extras that an engine of ``sqsgd train`` requires."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LEAST_MEMORY = 1 << 30
"""Bytes: the default run was measured to peak at two thirds of this."""

State = Literal["good", "missing", "broken"]


def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Check what is installed, which engines and datasets are usable, and how to fix what is missing.

    Exits with 1 if something is wrong that everything depends on; extras and datasets may be missing.
    """
    checks = list(examine(data_dir))
    works = all(check.works for check in checks if check.basic)
    if as_json:
        # "mend" is what earlier versions called "fix".
        print_json({"works": works, "checks": [{**asdict(check), "mend": check.fix} for check in checks]})
    else:
        rows = [[check.state, check.group, check.name, check.found, check.needed] for check in checks]
        print_table(("state", "group", "what", "found", "needed"), rows)
        fixes = {check.fix: None for check in checks if check.fix}
        typer.echo("\nThe basics work." if works else "\nThe basics do NOT work.")
        if fixes:
            typer.echo("To fix what is missing or broken:")
            for fix in fixes:
                names = ", ".join(check.name for check in checks if check.fix == fix)
                typer.echo(wrapped(f"  {names}:", 2))
                typer.echo(wrapped(f"    {fix}", 4))
    raise typer.Exit(0 if works else 1)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    >>> Check(group="basics", name="python", state="good", found="3.12.1", basic=True).works
    True
    """

    group: str
    name: str
    state: State
    found: str
    needed: str = ""
    fix: str = ""
    """The command that fixes it; empty if nothing is wrong."""
    basic: bool = False
    """Nothing works without it."""

    @property
    def works(self) -> bool:
        """Whether it can be used."""
        return self.state == "good"


def _check(
    group: str, name: str, state: State, found: str, fix: str, *, needed: str = "", basic: bool = False
) -> Check:
    fix = "" if state == "good" else fix
    return Check(group=group, name=name, state=state, found=found, needed=needed, fix=fix, basic=basic)


def find_chromium() -> str | None:
    """$SQSGD_CHROMIUM, or the first of the usual names on the PATH, or None."""
    return os.environ.get("SQSGD_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def examine(data_dir: str | Path | None = None) -> Iterator[Check]:
    """Run every check, the basic ones first; a check that fails does not stop the others."""
    yield _python()
    yield from _packages("", basic=True)
    yield _tried("entropy", _entropy, "sqsgd needs the operating system's random numbers")
    yield _tried("kernels", _kernels, _install(), needed="numba compiles, a report round-trips")
    yield _machine()
    for extra in EXTRAS:
        yield from _packages(extra)
    yield from _engines()
    yield from _data_sets(data_dir)
    yield _browser()


def _install(*extras: str) -> str:
    """The pip command that installs these extras from the same source as this copy."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        origin = json.loads(importlib.metadata.distribution("sqsgd").read_text("direct_url.json") or "{}")
        url = str(origin.get("url", ""))
        if origin.get("dir_info", {}).get("editable"):
            return f"pip install --editable '{unquote(urlsplit(url).path)}{wanted}'"
        if url:
            return f"pip install 'sqsgd{wanted} @ {url}'"
    return f"pip install --upgrade 'sqsgd{wanted}'"


def _python() -> Check:
    state: State = "good" if sys.version_info >= LEAST_PYTHON else "broken"
    fix = "install Python 3.11 or later and create a new virtual environment with it"
    needed = ">=" + ".".join(map(str, LEAST_PYTHON))
    return _check("basics", "python", state, platform.python_version(), fix, needed=needed, basic=True)


def _packages(extra: str, *, basic: bool = False) -> Iterator[Check]:
    """Compare the requirements of an extra, or of the package itself, with what is installed."""
    from packaging.requirements import Requirement

    group = f"extra {extra}" if extra else "basics"
    try:
        lines = importlib.metadata.requires("sqsgd") or []
    except importlib.metadata.PackageNotFoundError:
        if basic:
            why = "this source tree is not installed, so its requirements are unknown"
            yield _check(group, "sqsgd", "missing", why, "pip install --editable .")
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if (marker is None or marker.evaluate({"extra": ""})) == bool(extra):
            continue
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        needed, fix = str(requirement.specifier), _install(*([extra] if extra else []))
        try:
            found = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            state: State = "missing"
            found = "not installed"
        else:
            state = "good" if requirement.specifier.contains(found, prereleases=True) else "broken"
        yield _check(group, requirement.name, state, found, fix, needed=needed, basic=basic)


def _tried(name: str, attempt: Callable[[], str], fix: str, needed: str = "") -> Check:
    """Run a basic check; if it raises an exception, report that as what is wrong."""
    state: State = "good"
    try:
        found = attempt()
    except Exception as error:
        state, found = "broken", f"{type(error).__name__}: {error}"
    return _check("basics", name, state, found, fix, needed=needed, basic=True)


def _entropy() -> str:
    """Read without blocking: shortly after boot the kernel may not have enough entropy yet."""
    if hasattr(os, "getrandom"):
        os.getrandom(32, os.GRND_NONBLOCK)
        source = "getrandom"
    else:
        os.urandom(32)
        source = "os.urandom"
    from sqsgd.randomness import secure_rng

    if bytes(secure_rng().take(16)) == bytes(secure_rng().take(16)):
        raise RuntimeError("two generators gave the same 16 bytes")
    return f"{source} of {platform.system()}"


def _kernels() -> str:
    import numpy as np

    from sqsgd import Task, make_scheme, secure_rng

    started = time.perf_counter()
    scheme = make_scheme("sqsgd", dim=1000, epsilon=200.0, bits=1024)
    task = Task(round=0, client=0, seed=0, dim=1000, bound=1.0)
    x = np.ones(1000, np.float32) / np.float32(1000**0.5)
    mean = scheme.aggregate((task, scheme.encode(x, task, secure_rng())) for _ in range(20))
    seconds = time.perf_counter() - started
    if not np.isfinite(mean).all() or mean.sum() <= 0:
        raise RuntimeError("the mean of 20 reports of one vector does not point in its direction")
    from sqsgd.kernels.rotation import rotate

    kept = type(getattr(rotate, "_cache", None)).__name__ != "NullCache"
    where = "cached on disk" if kept else "compiled by each process: set NUMBA_CACHE_DIR to a folder"
    return f"20 reports in {seconds:.1f} s; machine code is {where}"


def _machine() -> Check:
    from sqsgd.training.settings import cores

    memory = memory_bytes()
    state: State = "good" if memory >= LEAST_MEMORY else "broken"
    found = f"{cores()} cores, {memory / 2**30:.1f} GiB of memory, {platform.machine()}"
    fix = "train with workers = 1 in a --config file, or on a machine with more memory"
    return _check("basics", "machine", state, found, fix, needed=f"{LEAST_MEMORY / 2**30:.0f} GiB to train")


def memory_bytes() -> int:
    """The memory this process may use: the machine's, or its container's limit if that is less."""
    memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit: the file says max
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def _engines() -> Iterator[Check]:
    from sqsgd.training.settings import ENGINES

    modules = {"train": ("torch", "safetensors.numpy", "tomli_w"), "flower": ("flwr",)}
    for engine in ENGINES:
        found = "usable"
        state: State = "good"
        for module in (name for extra in ENGINE_NEEDS[engine] for name in modules[extra]):
            try:
                importlib.import_module(module)
            except Exception as error:
                found = f"{module}: {error}"
                state = "missing" if isinstance(error, ModuleNotFoundError) else "broken"
                break
        yield _check("engines", engine, state, found, _install(*ENGINE_NEEDS[engine]))


def _data_sets(data_dir: str | Path | None) -> Iterator[Check]:
    from sqsgd.learning.dataset_files import dataset_status
    from sqsgd.learning.dataset_sources import EMBEDDED

    for status in dataset_status(data_dir):
        more = f" and {len(status.missing) - 1} more" if len(status.missing) > 1 else ""
        found = str(status.where) if status.available else f"missing {status.missing[0]}{more}"
        fix = _install("train") if status.name == EMBEDDED else status.how
        yield _check("data sets", status.name, "good" if status.available else "missing", found, fix)


def _browser() -> Check:
    program = find_chromium()
    found = program or "none of " + ", ".join(BROWSERS)
    fix, needed = (
        "apt install chromium, or set SQSGD_CHROMIUM to its path",
        "for the tests that open a report",
    )
    state: State = "good" if program else "missing"
    return _check("for contributors", "chromium", state, found, fix, needed=needed)
