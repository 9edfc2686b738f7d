"""One training run from Python, from its settings to its report: what ``sqsgd train`` does."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from sqsgd.files.json_numbers import NUMBERS
from sqsgd.training.run_folder import new_folder
from sqsgd.training.settings import FIELDS, RunConfig, load_config, make_config, read_config

if TYPE_CHECKING:
    from sqsgd.experiments.runner import Run
    from sqsgd.training import State

OBJECTS = ("dataset", "model", "loss")
"""The settings that may be objects of Python instead of names."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run: what is in its folder, and the trained model.

    >>> TrainedRun(
    ...     folder=Path("runs/a"), config=RunConfig(), summary={"metrics": {"RMSE": 0.5}}, model=None
    ... ).metrics
    {'RMSE': 0.5}
    """

    folder: Path
    config: RunConfig
    summary: Mapping[str, Any]
    """What ``summary.json`` holds: the metrics, the guarantee, bytes and time."""
    model: Any
    """The torch module, with the weights after the last round."""

    @property
    def metrics(self) -> dict[str, float]:
        """The last measurement on held-out data, by name; the headline first."""
        found = self.summary["metrics"] or {self.summary["metric"]: self.summary["test_loss"]}
        return {name: NUMBERS.get(value, value) for name, value in found.items()}

    @property
    def records(self) -> list[dict[str, Any]]:
        """One record per round, as in ``metrics.jsonl``."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def train(
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    report: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train a model over simulated clients, as the command ``sqsgd train`` does, and return the run.

    ``settings`` are the keys of a configuration, which are the options of the command with underscores:
    ``scheme``, ``epsilon``, ``bytes``, ``clients``, ``rounds`` and so on; they override the file ``config``.
    ``dataset`` may also be the data themselves (arrays, a DataFrame, a Hugging Face dataset), ``model`` a
    module or a function that makes one, and ``loss`` a function of (model, batch) or an object that has one.
    ``out`` is the folder of the run, by default a new one below ``runs``. ``resume`` continues the run there;
    objects must be given again. ``report``: write ``report.html``.

    Errors are ValueErrors with the message of the command. Ctrl-C saves a checkpoint and is raised again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(model="linear", clients=4, rounds=2, epsilon=50.0, bytes=32, out=folder, report=False)
    >>> run.summary["rounds"], run.summary["notion"], list(run.metrics)
    (2, 'local', ['accuracy'])
    """
    from sqsgd.experiments import runner
    from sqsgd.learning.gradients import threads_restored

    unknown = [name for name in settings if name not in FIELDS]
    if unknown:
        raise ValueError(f"{unknown[0]} is not a setting of a run; they are {', '.join(FIELDS)}")
    values, given = _named(settings)
    with threads_restored():
        try:
            run, state = begin(values, config, None if out is None else Path(out), resume=resume, given=given)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error
            raise ValueError(str(reason)) from error
        for line in () if resume else (runner.left_out(run), runner.outlook(run.config, run.problem.dim)):
            if line:
                warnings.warn(line, stacklevel=2)
        for _ in runner.train(run, state):
            pass
    summary = json.loads((run.folder / "summary.json").read_text())
    if report:
        from sqsgd.report.page import write_report

        write_report([run.folder], run.folder / "report.html")
    return TrainedRun(folder=run.folder, config=run.config, summary=summary, model=run.problem.model)


def begin(
    values: Mapping[str, Any],
    config_file: str | Path | None,
    out: Path | None,
    *,
    resume: bool,
    given: Mapping[str, Any] | None = None,
) -> tuple[Run, State]:
    """A new run from a file and values that override it, or the run in ``out`` from its last checkpoint."""
    from sqsgd.experiments import runner

    if resume:
        if out is None:
            raise ValueError("--resume needs --out: the folder of the run to resume")
        begun = load_config(out / "config.toml") if (out / "config.toml").exists() else None
        # An object is given again as it was: by its name, or as one that has none.
        changed = [
            name for name in values if name not in OBJECTS or (begun and values[name] != getattr(begun, name))
        ]
        if changed or config_file:
            named = ", ".join(sorted(changed) or ["config"])
            raise ValueError(f"--resume takes every setting from {out / 'config.toml'}; leave out {named}")
        if begun is None:
            raise ValueError(f"{out} has no config.toml: there is nothing to resume")
        run = runner.prepare(begun, out, given)
        return run, runner.resume(run)
    if out is not None:
        runner.check_free(out)  # before data are loaded
    base = read_config(config_file) if config_file else {}
    merged = {**base, **values}
    if isinstance(options := values.get("options", {}), Mapping):
        merged["options"] = {**base.get("options", {}), **options}
    config = make_config(merged, where="the command line" if given is None else "the settings")
    run = runner.prepare(config, out or Path("runs"), given, new=True)
    if out is None:  # created only now that the run is known to be valid
        run = dataclasses.replace(run, folder=new_folder(config.dataset))
    return run, runner.start(run)


def _named(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings with names in place of objects, and the objects whose name cannot be imported."""
    values, given = dict(settings), {}
    for name in OBJECTS:
        value = settings.get(name)
        if value is None or isinstance(value, str):
            continue
        values[name] = _importable(value) or "in-memory"
        if values[name] == "in-memory":
            given[name] = value
    for name, value in values.items():
        if isinstance(value, np.generic):
            values[name] = value = value.item()
        if isinstance(value, Path):
            values[name] = str(value)
        elif isinstance(value, int) and not isinstance(value, bool) and FIELDS[name].type in ("float", "str"):
            values[name] = float(value) if FIELDS[name].type == "float" else str(value)
    return values, given


def _importable(value: Any) -> str:
    """``module:name`` of a function or class that another process can import by it; else nothing."""
    if not isinstance(value, type | FunctionType) or value.__module__ == "__main__":
        return ""
    module, name = value.__module__, value.__qualname__
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is value else ""
