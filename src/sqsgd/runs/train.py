"""One training run, from its configuration to its summary: ``sqsgd.train`` and ``sqsgd train``."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import math
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from sqsgd._internal.exact import total
from sqsgd._internal.files import NUMBERS, forget_secret
from sqsgd.core import Scheme
from sqsgd.privacy import planner
from sqsgd.privacy.ledger import Ledgers
from sqsgd.privacy.record_plan import record_warnings
from sqsgd.schemes import check_name
from sqsgd.training import engine
from sqsgd.training import order as orders
from sqsgd.training.rates import change_rate
from sqsgd.training.run_folder import CONFIG, RunFolder, new_folder
from sqsgd.training.settings import (
    FEDERATIONS,
    FIELDS,
    IN_MEMORY,
    RunConfig,
    cores,
    load_config,
    make_config,
    read_config,
)
from sqsgd.training.state import Record, State, initial_state
from sqsgd.training.summary import about_once, certificate, reached, summarise, told

if TYPE_CHECKING:
    from sqsgd.learning.datasets import Dataset
    from sqsgd.learning.problem import LearningProblem

_LOG = logging.getLogger("sqsgd")
MAY_CHANGE = ("rounds", "workers", "evaluate_every", "checkpoint_every", "data_dir", "device", "name")
"""The keys of config.toml that may be changed before a run is resumed: none affects a completed round."""
OBJECTS = ("dataset", "model", "loss", "scheme")  # what may be objects


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedRun:
    """A finished run with the content of its folder and the trained model.

    >>> summary = {"metrics": {"accuracy": 0.9}}
    >>> TrainedRun(folder=Path("a"), config=RunConfig(epsilon=8.0), summary=summary, model=None).metrics
    {'accuracy': 0.9}
    """

    folder: Path
    config: RunConfig
    summary: Mapping[str, Any]
    """The content of ``summary.json``: the metrics, the guarantee, bytes and time."""
    model: Any
    """The torch module, with the weights after the last round."""

    def __repr__(self) -> str:
        about, notion = self.summary, self.summary["notion"]
        whom = "of the sum of reports" if notion == "central" else "per report"
        spent = f"epsilon {about['epsilon']:g} {whom}" if notion != "none" else "not private"
        if notion == "record":
            spent = f"epsilon {about['epsilon_all_rounds']:g} per record in all rounds"
        parts = [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        parts += [about["scheme"], spent, f"{self.config.rounds:,} rounds"]
        return f"TrainedRun({', '.join(parts)}, folder={str(self.folder)!r})"

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics on held-out data by name, starting with the main metric."""
        found = self.summary["metrics"] or {self.summary["metric"]: self.summary["test_loss"]}
        return {name: NUMBERS.get(value, value) for name, value in found.items()}

    @property
    def records(self) -> list[dict[str, Any]]:
        """One record per round."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def run(
    config: RunConfig | str | Path | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: bool = True,
    **settings: Any,
) -> Run:
    """Iterate over the rounds of a training, one record per round. ``result`` is then the finished run.

    If a loop ends early (``break`` or an exception), continue with another loop or ``resume=True``.

    Args:
        config: As for ``train``. The same applies to all other arguments.
        out: The folder of the run.
        resume: Continue the run in ``out``.
        report: Write ``report.html`` after the last round.
        **settings: Fields of ``RunConfig``, or objects.

    Raises:
        ValueError: If a setting is invalid.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rounds = run(model="linear", clients=4, rounds=2, epsilon=50.0, out=folder, report=False)
    ...     for record in rounds:
    ...         print(record.round, record.epsilon_total, record.clients)
    ...     rounds.result.summary["rounds"], len(rounds)  # the rounds that are left
    0 50.0 4
    1 100.0 4
    (2, 0)
    """
    import torch

    if not resume and isinstance(scheme := settings.get("scheme"), Scheme) and scheme.privacy.is_private:
        settings = {"epsilon": scheme.privacy.epsilon, **settings}
    if config is None and not resume and "epsilon" not in settings:
        raise ValueError("epsilon is missing: give the epsilon of one report (the paper's is 400)")
    if isinstance(config, RunConfig):
        settings, config = {**dataclasses.asdict(config), **settings}, None
    (values, given), threads = _named(settings), torch.get_num_threads()
    try:
        begun = begin(values, config, None if out is None else Path(out), resume=resume, given=given)
    finally:  # prepare_torch sets one
        torch.set_num_threads(threads)
    for line in () if resume else begun.notes:
        warnings.warn(line, stacklevel=2)
    return dataclasses.replace(begun, report=report)


def train(
    config: RunConfig | str | Path | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train a model over simulated clients, as the command ``sqsgd train`` does, and return the run.

    Args:
        config: A configuration, or the path of a TOML file with any of its keys.
        out: The folder of the run; by default a new one below ``runs``.
        resume: Continue the run in ``out``; objects must be given again.
        report: Write ``report.html``.
        **settings: Fields of ``RunConfig``, which override ``config``; without it ``epsilon`` is needed.
            ``dataset`` may also be the data themselves (arrays, a DataFrame, a torch Dataset or DataLoader, a
            Hugging Face dataset), ``model`` a module or a function that makes one, ``loss`` a function of
            (model, batch), an object that has one, or a loss of torch.nn, and ``scheme`` a ``Scheme``, whose
            ε is then the default, or a function of dim, epsilon and bytes that makes one.

    Returns:
        The finished run. Ctrl-C saves a checkpoint and is raised again.

    Raises:
        ValueError: If a setting is invalid.
        FileNotFoundError: If the configuration or the dataset does not exist.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(model="linear", clients=4, rounds=2, epsilon=50.0, bytes=32, out=folder, report=False)
    >>> run.summary["rounds"], run.summary["notion"], list(run.metrics)
    (2, 'local', ['accuracy'])
    """
    rounds = run(config, out=out, resume=resume, report=report, **settings)
    for _ in rounds:
        pass
    return rounds.result


def begin(
    values: Mapping[str, Any],
    config_file: str | Path | None,
    out: Path | None,
    *,
    resume: bool,
    given: Mapping[str, Any] | None = None,
) -> Run:
    """Return a new run, or the one in ``out``; ``given``: objects that are in memory."""
    if resume:
        if out is None:
            raise ValueError("--resume needs --out: the folder of the run to resume")
        begun = load_config(out / CONFIG) if (out / CONFIG).exists() else None
        # An object is given again as it was: by its name, or as one that has none.
        changed = [
            name for name in values if name not in OBJECTS or (begun and values[name] != getattr(begun, name))
        ]
        if changed or config_file:
            named = ", ".join(sorted(changed) or ["config"])
            raise ValueError(f"--resume takes every setting from {out / CONFIG}; leave out {named}")
        if begun is None:
            raise ValueError(f"{out} has no {CONFIG}: nothing to resume")
        return prepare(begun, out, given).resumed()[0]
    if out is not None:
        RunFolder(out).check_free()  # before data are loaded
    base = read_config(config_file) if config_file else {}
    merged = {**base, **values}
    if isinstance(options := values.get("options", {}), Mapping):
        merged["options"] = {**base.get("options", {}), **options}
    config = make_config(merged, where="the command line" if given is None else "the settings")
    run = prepare(config, out or Path("runs"), given)
    if out is None:  # created only now that the run is known to be valid
        run = dataclasses.replace(run, folder=new_folder(config.dataset))
    return run.started()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, whose parts fit together: iterating carries out the rounds that are left, see ``sqsgd.run``."""

    config: RunConfig
    folder: Path
    problem: LearningProblem
    scheme: Scheme
    settings: RunConfig  # with bound and rate decided
    order: orders.Order | None = None  # a secret one is drawn when the run begins, and kept in a file
    order_file: str = ""
    report: bool = False  # whether a loop over all rounds writes the page

    def __len__(self) -> int:
        return self.config.rounds - RunFolder(self.folder).load()[0].round

    def __iter__(self) -> Iterator[Record]:
        import torch

        finished, threads = RunFolder(self.folder).finished, torch.get_num_threads()
        torch.set_num_threads(1)  # see prepare_torch
        try:
            yield from self.rounds()
        finally:
            torch.set_num_threads(threads)
        if self.report and not finished:
            from sqsgd.report.page import write_report

            write_report([self.folder], self.folder / "report.html")

    @property
    def result(self) -> TrainedRun:
        """The finished run. Raises ValueError before that."""
        if not RunFolder(self.folder).finished:
            raise ValueError(f"the run in {self.folder} is not finished: read all of its rounds")
        summary = json.loads((self.folder / "summary.json").read_text())
        self.problem.named_weights(RunFolder(self.folder).load()[0].weights)  # also where none was left
        return TrainedRun(folder=self.folder, config=self.config, summary=summary, model=self.problem.model)

    @property
    def notes(self) -> list[str]:
        """Notes before it begins: clients that do not take part, and that little will be learned."""
        owners, config = self.problem.dataset.owners, self.config
        absent = ""
        if owners is not None and config.clients <= int(owners.max()):
            absent = (
                f"clients = {config.clients:,}: only the first of the data's {int(owners.max()) + 1:,} "
                "clients take part; leave clients out, and all do"
            )
        data = self.problem.dataset.note
        if config.per_record:
            parts = self.problem.parts
            sizes = [len(parts[client]) for client in range(len(parts))]
            drawn = min(sizes) * self.scheme.privacy.share
            data = " ".join([data, *record_warnings(min(sizes), drawn, config.delta)]).strip()
        return [note for note in (absent, data, outlook(config, self.scheme)) if note]

    def started(self) -> Run:
        """The run with its order, after the files of its folder are written."""
        config, files, run = self.config, RunFolder(self.folder), self
        files.check_free()
        kept, place = config.ledgers, self.folder.resolve()
        if kept and config.once and config.secure and Path(kept).is_relative_to(place):
            raise ValueError(
                f"ledgers = {kept!r} is in {self.folder}, where results go: a ledger says in which round its "
                "user reported, which is a secret here; choose a folder elsewhere"
            )
        if config.reports > 1 and (ledgers := _ledgers(config, self.scheme)):
            ledgers.check(config.clients)
        if config.once and self.order is None:
            order = orders.secret_order(**config.slots)
            run = dataclasses.replace(self, order=order, order_file=orders.keep_order(order, self.folder))
        state = initial_state(self.problem.initial(), self.settings)
        files.begin(state, run._about(), config.to_toml())
        return run

    def resumed(self) -> tuple[Run, State]:
        """Return the run at its own rate, and the last checkpoint's state; refuses another configuration."""
        config, files = self.config, RunFolder(self.folder)
        state, kept = files.load()
        # With these, the number of rounds decides who is in a round, the size of its step, or the noise.
        fixed = {"rounds"} if config.once or config.per_record or config.decay != "none" else set()
        for name, value in json.loads(json.dumps(dataclasses.asdict(config))).items():  # no tuples
            if (name not in MAY_CHANGE or name in fixed) and kept[name] != value:
                raise ValueError(
                    f"{self.folder / 'config.toml'}: {name} = {value!r}, but this run was begun with "
                    f"{kept[name]!r}: restore that value, or start again with another --out"
                )
        about = self._about()
        data = (
            f"has shapes and a checksum of labels {about['data']}, but this run was begun with {kept['data']}"
        )
        for name, key, wrong in (
            ("data", "dataset", f"{data}: give the same data in the same order, or another --out"),
            ("frozen", "model", "has frozen weights that are others than this run began with"),
            ("fingerprint", "scheme", "is another than this run was begun with"),
        ):
            if kept[name] != about[name]:
                raise ValueError(f"{key} = {getattr(config, key)!r} {wrong}")
        if state.weights.size != self.problem.dim:
            raise ValueError(f"the checkpoint has {state.weights.size} weights, the model {self.problem.dim}")
        if config.unrepeatable and files.last_begun == state.round and not files.finished:
            state = dataclasses.replace(state, lost=state.round)
        order = self.order
        if config.once and order is None and state.round < config.rounds:
            order = orders.kept_order(kept["order"])
        settings = dataclasses.replace(self.settings, lr=kept["rate"])
        return dataclasses.replace(self, settings=settings, order=order, order_file=kept["order"]), state

    def _about(self) -> dict[str, Any]:
        """The run of a checkpoint, next to its state: other data are then an error."""
        from sqsgd.learning.gradients import frozen_checksum

        data, labels = self.problem.dataset, 0  # inputs may be features: their bits depend on the machine
        for each in (data.train_labels, data.test_labels):
            labels = zlib.crc32(each.cpu().numpy().tobytes(), labels)
        return {
            **dataclasses.asdict(self.config),
            "order": self.order_file,
            "rate": self.settings.lr,
            "fingerprint": self.scheme.fingerprint,
            "data": [list(data.train_inputs.shape), list(data.test_inputs.shape), labels],
            "frozen": frozen_checksum(self.problem.model),
        }

    def rounds(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Record]:
        """The remaining rounds, each written before its record is yielded, unless ``stop``; the summary."""
        run, state = self.resumed()
        if state.round == self.config.rounds and RunFolder(self.folder).finished:
            return
        config, files, about = self.config, RunFolder(self.folder), run._about()
        # Flower's clients keep their last round only, so nothing older can be resumed.
        every = 1 if config.unrepeatable or config.engine == "flower" else config.checkpoint_every
        with files.held():
            files.keep_rounds(state.round)
            _LOG.info("round %s of %s", f"{state.round + 1:,}", f"{config.rounds:,}")
            try:
                for record, after in run._engine_rounds(state, files):
                    if after.round == config.rounds or after.round % config.evaluate_every == 0:
                        record = dataclasses.replace(record, **run.problem.measure(after.weights).recorded())
                    measured = reached(record)
                    level = logging.INFO if measured else logging.DEBUG
                    _LOG.log(level, told(record, config.rounds, measured))
                    files.write(record.to_dict())
                    state = after  # only now: a checkpoint needs a line for each of its rounds
                    if state.round == config.rounds or state.round % every == 0:
                        files.save(state, about)
                    yield record
                    if stop() and state.round < config.rounds:
                        files.save(state, about)
                        return
            except (KeyboardInterrupt, GeneratorExit):
                files.save(state, about)
                raise
            _LOG.info("summary and central guarantee")
            summary = run._summary(files.lines)
            model = run.problem.named_weights(state.weights)
            files.finish(model, summary, certificate(run.scheme, summary))
            if run.order_file:  # nobody needs to know it any more
                forget_secret(run.order_file)

    def _engine_rounds(self, state: State, files: RunFolder) -> Iterator[tuple[Record, State]]:
        parts, config = (self.problem, self.scheme, self.settings, state), self.config
        if config.engine == "flower":
            from sqsgd.federation.flower.simulation import simulated_rounds

            yield from simulated_rounds(
                *parts, config=config, order=self.order, folder=self.folder, load_problem=load_problem
            )
            return
        ledgers, workers = _ledgers(config, self.scheme), config.workers or cores()
        rounds = engine.run(*parts, config.rounds, order=self.order, ledgers=ledgers, workers=workers)
        while state.round < config.rounds:
            if config.unrepeatable:
                files.begin_round(state.round)
            record, state = next(rounds)
            yield record, state

    def _summary(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        config = self.config
        told = ("dataset", "model", "loss", "features", "participation", "clients", "visits")
        about = {name: getattr(config, name) for name in told} | {
            "held_out": self.problem.dataset.held_out,
            "noise": "secure" if config.secure else "seeded: an experiment, protects nobody",
            "protects": _protected(config),
        }
        if config.once:
            each: dict[str, Any] = {"reports": config.reports, "seeded": not config.secure}
            each |= {"one_visit": config.participants} if config.reports > config.passes else {}
            about |= about_once(self.scheme, "run", lines, **each)
        if config.once and about["protects"] == "row":
            about["central_note"] = about["central_note"].replace("user", "row")
        reports = config.reports if config.once else 0
        return summarise(lines, self.scheme, self.settings, reports=reports, **about)


def prepare(config: RunConfig, folder: Path, given: Mapping[str, Any] | None = None) -> Run:
    """Load data and model, make the scheme. Raises ValueError naming the wrong key. Writes nothing."""
    check_parts(config)
    problem = load_problem(config, given)
    _LOG.info("scheme and learning rate")
    config = config.on(problem.dataset.owners, len(problem.dataset.train_labels))
    config, scheme, settings = fitted(config, problem.dim, given)
    if config.local_epochs and not config.lr and scheme.follows_norms:  # as far as the clients' own steps go
        steps = len(problem.dataset.train_labels) / config.clients / config.batch
        whole = config.local_lr * config.local_epochs * math.ceil(steps)
        lr = max(settings.lr, whole * change_rate(scheme, config.asked, config.optimizer))
        settings = dataclasses.replace(settings, lr=lr)
    if scheme.sums_records:
        problem.check_records()
    order = None
    if config.once and not config.secure:
        order = orders.seeded_order(seed=config.seed, **config.slots)
    return Run(config=config, folder=folder, problem=problem, scheme=scheme, settings=settings, order=order)


def check_parts(config: RunConfig) -> None:
    """Check what needs no data: the scheme's name, and whether the engine is installed."""
    if config.own_scheme and config.engine == "flower":
        raise ValueError(f"scheme = {config.scheme!r}: engine = 'flower' takes names of sqsgd.SCHEMES only")
    if config.scheme != "auto" and not config.own_scheme:
        check_name("scheme", config.scheme)
    if config.engine in FEDERATIONS:
        raise ValueError(f"engine = {config.engine!r}: trained by a federation; resume it on its server")
    needed = ("flwr", "ray") if config.engine == "flower" else ()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise ValueError(f"engine = 'flower' needs {' and '.join(missing)}: pip install 'sqsgd[flower]'")


def _own_scheme(config: RunConfig, dim: int, given: Mapping[str, Any] | None) -> Scheme:
    """Return the user's scheme. Raises ValueError unless it fits the model and the budget."""
    from sqsgd.learning.factories import call_factory, find_named

    name, value = config.scheme, (given or {}).get("scheme")
    value = find_named(name, "scheme") if value is None else value
    if not isinstance(value, Scheme):
        budget = {"dim": dim, "epsilon": config.epsilon, "bytes": config.budget(dim)}
        value = partial(value, **config.options) if callable(value) else value
        value = call_factory(name, "scheme", value, **budget)
        if not isinstance(value, Scheme):
            raise ValueError(f"scheme {name!r} returned a {type(value).__name__}, not a sqsgd.Scheme")
    elif config.options:
        raise ValueError(f"options = {config.options} belong to a name; this scheme is made already")
    if value.dim != dim:
        raise ValueError(f"scheme {name!r} is for {value.dim:,} weights; the model has {dim:,}")
    if value.privacy.is_private and value.privacy.epsilon > config.epsilon:
        raise ValueError(f"scheme {name!r} spends {value.privacy.epsilon:g}; epsilon = {config.epsilon:g}")
    if config.once and value.keeps_state:
        raise ValueError(f"scheme {name!r} keeps a residual; participation = 'once' does not support this")
    return value


def fitted(
    config: RunConfig, dim: int, given: Mapping[str, Any] | None = None
) -> tuple[RunConfig, Scheme, RunConfig]:
    """Return the complete configuration, the scheme, and the configuration with bound and rate decided."""
    if config.own_scheme:
        scheme = _own_scheme(config, dim, given)
    else:
        visits = config.average_reports
        scheme = config.make_scheme(dim, visits=visits, apart=config.apart, once=config.once)
    if config.ledgers:
        place = Path(config.ledgers).resolve()  # the same folder wherever the run is resumed
        if place.exists() and not place.is_dir():
            raise ValueError(f"ledgers = {config.ledgers!r} is a file; name a folder")
        config = dataclasses.replace(config, ledgers=str(place))
    config = config.chosen(scheme)
    _ledgers(config, scheme)
    return config, scheme, config.fitted(scheme, config.asked, rule=_once_rule(config))


def _ledgers(config: RunConfig, scheme: Scheme) -> Ledgers | None:
    if not config.ledgers:
        return None
    if scheme.sums_records:
        return Ledgers(folder=Path(config.ledgers), max_epsilon=config.epsilon, delta=config.delta)
    if not scheme.privacy.is_pure_local:
        raise ValueError(f"ledgers = {config.ledgers!r}: scheme = {config.scheme!r} is not locally private")
    if scheme.privacy.arithmetic != "exact":
        raise ValueError(
            f"ledgers = {config.ledgers!r}: scheme = {config.scheme!r} is private in real arithmetic only, "
            "which ledgers do not certify; choose another scheme, or omit ledgers"
        )
    cap = total(scheme.privacy.epsilon, config.reports if config.once else config.rounds)
    return Ledgers(folder=Path(config.ledgers), max_epsilon=cap)


def _protected(config: RunConfig) -> str:
    return "record" if config.per_record else "row" if config.is_table and not config.owner else "client"


def _once_rule(config: RunConfig) -> str:
    """Return the rule for rates where clients answer in slots for a linear model on unit rows, or nothing."""
    from sqsgd.learning.features import PRETRAINED, extractor_and_model

    features, model = extractor_and_model(config.features, config.model)
    linear = model in ("linear", PRETRAINED) and (bool(features) or config.is_table)
    if not ((config.once or config.per_record) and config.optimizer == "sgd" and linear):
        return ""
    if features:
        return "pretrained" if model == PRETRAINED else "softmax"
    return "numbers" if config.loss == "squared-error" else "classes"


def outlook(config: RunConfig, scheme: Scheme) -> str:
    """One line if a model is predicted to learn little or nothing from such reports."""
    if scheme.sums_records:
        return ""
    softmax = bool(_once_rule(config))
    reports = config.clients * config.reports if softmax else config.asked * config.rounds
    found = planner.outlook(scheme, reports, config.bound, softmax=softmax)
    return f"{scheme.name} at epsilon {config.epsilon:g}: {found}" if found else ""


def load_problem(
    config: RunConfig, given: Mapping[str, Any] | None = None, loaded: Dataset | None = None
) -> LearningProblem:
    """The data and the model of a run; ``loaded``: what ``load_data`` gave for the same data and features."""
    from sqsgd.learning.datasets import first_tests, hold_out
    from sqsgd.learning.features import extractor_and_model
    from sqsgd.learning.models import make_model
    from sqsgd.learning.objectives import find_objective, make_objective
    from sqsgd.learning.problem import find_device, make_problem

    given = given or {}
    if given and config.engine == "flower":
        raise ValueError(
            f"engine = 'flower' starts other processes, which need {' and '.join(given)} by name: write "
            "package.module:name"
        )
    for name in OBJECTS:
        if getattr(config, name) == IN_MEMORY and name not in given:
            raise ValueError(
                f"{name} = {IN_MEMORY!r}: this run was started from Python with an object that has no name; "
                f"resume it with sqsgd.train(out=..., resume=True, {name}=...)"
            )
    device = find_device(config.device)
    objective = make_objective(config.loss, given["loss"]) if "loss" in given else find_objective(config.loss)
    features, model_name = extractor_and_model(config.features, config.model)
    dataset = loaded or load_data(config, given)
    if config.validation:
        dataset = hold_out(dataset, config.validation, config.seed)
    if config.test_images:
        dataset = first_tests(dataset, config.test_images)
    config = config.on(dataset.owners, len(dataset.train_labels))
    if config.is_table and config.partition == "drawn":
        raise ValueError("partition = 'drawn' gives one row to several clients; leave it out for tables")
    _LOG.info("model %s on %s examples", model_name, f"{len(dataset.train_labels):,}")
    intercept = not features and not config.is_table
    made = (model_name, dataset.classes, dataset.in_shape, config.seed, given.get("model"))
    model = make_model(*made, head=dataset.head, intercept=intercept)
    same = ("clients", "seed", "batch", "participants", "minibatch", "local_epochs", "local_lr")
    chosen: dict[str, Any] = {name: getattr(config, name) for name in same}
    chosen |= {"partition_scheme": config.partition, "device": device, "objective": objective}
    return make_problem(dataset, model, workers=config.workers or cores(), **chosen)


def load_data(config: RunConfig, given: Mapping[str, Any] | None = None) -> Dataset:
    """Return all of the dataset, with features in place of its inputs if the run has them."""
    from sqsgd.learning.datasets import Dataset, given_dataset, load_dataset, table_dataset
    from sqsgd.learning.features import extracted, extractor_and_model
    from sqsgd.learning.tables import Columns

    features, _ = extractor_and_model(config.features, config.model)
    value = (given or {}).get("dataset", config.dataset)
    _LOG.info("reading %s", config.dataset)
    if config.is_table and not isinstance(value, Dataset):
        facts = {name: getattr(config, name) for name in ("label", "owner", "ranges", "categories")}
        dataset, _ = table_dataset(config.dataset, value, Columns(**facts))
    elif given and "dataset" in given:
        dataset = given_dataset(config.dataset, given["dataset"])
    else:
        dataset = load_dataset(config.dataset, config.data_dir or None)
    return extracted(dataset, features) if features else dataset


def _named(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings with names in place of objects, and the objects whose name cannot be imported."""
    from sqsgd.learning.objectives import built_in

    values, given = dict(settings), dict[str, Any]()
    for name in OBJECTS:
        value = settings.get(name)
        if name == "loss" and (known := built_in(value)):
            values[name] = known
        elif value is not None and not isinstance(value, str | Path):
            values[name] = _importable(value) or IN_MEMORY
            given |= {name: value} if values[name] == IN_MEMORY else {}
    for name, value in values.items():
        plain = value.item() if isinstance(value, np.generic) else value
        as_text = FIELDS.get(name) is str and isinstance(plain, int | float | Path)
        values[name] = str(plain) if as_text else plain
    return values, given


def _importable(value: Any) -> str:
    """``module:name`` of a function or class that another process can import by it; else nothing."""
    if not isinstance(value, type | FunctionType) or value.__module__ == "__main__":
        return ""
    module, name = value.__module__, value.__qualname__
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is value else ""
