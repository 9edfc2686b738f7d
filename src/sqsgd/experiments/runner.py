"""One run, from its configuration to its summary; can be resumed."""

from __future__ import annotations

import dataclasses
import importlib.util
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqsgd import federated
from sqsgd.core import Scheme
from sqsgd.experiments.settings import begun_settings, make_settings, softmax_once
from sqsgd.federated.order import secret_order
from sqsgd.learning.datasets import Dataset, first_tests, given_dataset, hold_out, load_dataset
from sqsgd.learning.factories import IN_MEMORY
from sqsgd.learning.features import extracted, extractor_and_model
from sqsgd.learning.models import make_model
from sqsgd.learning.objectives import find_objective, make_objective
from sqsgd.learning.partition import NATURAL
from sqsgd.learning.problem import LearningProblem, find_device, make_problem
from sqsgd.privacy import planner
from sqsgd.runs.kept_order import SEEDED, forget_order, keep_order, kept_order
from sqsgd.runs.once_summary import about_once
from sqsgd.runs.run_folder import CONFIG, MODEL, SUMMARY, SWEEP, RunFolder
from sqsgd.schemes import check_name, make_scheme
from sqsgd.schemes.sqsgd import CODED, LEVELS, best_direction, code_of
from sqsgd.training import Record, Settings, State
from sqsgd.training.settings import EVERY_CLIENT, RunConfig, cores, load_config
from sqsgd.training.summary import summarise

MAY_CHANGE = (
    "rounds",
    "workers",
    "evaluate_every",
    "checkpoint_every",
    "data_dir",
    "tensorboard",
    "device",
    "name",
)
"""The keys of config.toml that may be changed before a run is resumed: none affects a completed round."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A prepared run, whose parts fit together."""

    config: RunConfig
    folder: Path
    problem: LearningProblem
    scheme: Scheme
    settings: Settings

    @property
    def unrepeatable(self) -> bool:
        """Whether a round cannot be repeated: its noise would differ, or its clients would refuse."""
        return self.config.engine == "local" and (self.config.secure or bool(self.config.ledgers))


def prepare(
    config: RunConfig,
    folder: Path,
    given: Mapping[str, Any] | None = None,
    *,
    new: bool = False,
) -> Run:
    """Load data and model, make the scheme; raises ValueError naming the wrong key. Writes nothing.

    ``given``: objects for the keys ``dataset``, ``model`` or ``loss`` that are ``in-memory``. ``new``: what
    the folder says about a run that was begun is not read.
    """
    check_parts(config)
    problem = load_problem(config, given)
    config = dataclasses.replace(config, clients=problem.clients)
    if not new and (folder / CONFIG).exists():
        config = _as_begun(config, load_config(folder / CONFIG), problem.dim)
    config, scheme, settings = fitted(config, problem.dim)
    return Run(config=config, folder=folder, problem=problem, scheme=scheme, settings=settings)


def check_parts(config: RunConfig) -> None:
    """Check what needs no data: the scheme's name, and whether the engine is installed."""
    if config.scheme != "auto":
        check_name("scheme", config.scheme)
    if config.engine == "flower":
        missing = [name for name in ("flwr", "ray") if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(f"engine = 'flower' needs {' and '.join(missing)}: pip install 'sqsgd[flower]'")


def fitted(config: RunConfig, dim: int) -> tuple[RunConfig, Scheme, Settings]:
    """The complete configuration, the scheme and the settings for a model of ``dim`` weights."""
    scheme = _scheme(config, dim)
    config = _chosen(config, scheme)
    if config.ledgers:
        place = Path(config.ledgers).resolve()  # the same folder wherever the run is resumed
        if place.exists() and not place.is_dir():
            raise ValueError(f"ledgers = {config.ledgers!r} is a file; name a folder")
        config = dataclasses.replace(config, ledgers=str(place))
    return config, scheme, make_settings(config, scheme)


def _as_begun(config: RunConfig, begun: RunConfig, dim: int) -> RunConfig:
    """The configuration with what an earlier version chose when it began the run, and did not write down."""
    if config.decay == "auto":
        config = dataclasses.replace(config, decay="none" if begun.decay == "auto" else begun.decay)
    if config.scheme not in CODED or "code" in {**config.options, **begun.options}:
        return config
    given = {name: value for name, value in config.options.items() if name != "levels"}
    levels = (config.options["levels"],) if "levels" in config.options else LEVELS
    block = config.scheme == "sqsgd"
    chosen = best_direction(dim, config.epsilon, 8 * config.bytes, block=block, levels=levels, **given)
    return dataclasses.replace(config, options={**config.options, "code": code_of(chosen)})


def _chosen(config: RunConfig, scheme: Scheme) -> RunConfig:
    """The configuration with what was left to choose: a run is resumed with what it was begun with."""
    options = (
        {**config.options, "code": code_of(scheme.mechanism)} if scheme.name in CODED else config.options
    )
    decay = "linear" if config.decay == "auto" else config.decay
    return dataclasses.replace(config, scheme=scheme.name, decay=decay, options=options)


def load_problem(
    config: RunConfig,
    given: Mapping[str, Any] | None = None,
    loaded: Dataset | None = None,
) -> LearningProblem:
    """The data and the model of a run; ``loaded``: what ``load_data`` gave for the same data and features."""
    given = given or {}
    if given and config.engine == "flower":
        raise ValueError(
            f"engine = 'flower' starts other processes, which need {' and '.join(given)} by name: write "
            "package.module:name"
        )
    for name in ("dataset", "model", "loss"):
        if getattr(config, name) == IN_MEMORY and name not in given:
            raise ValueError(
                f"{name} = {IN_MEMORY!r}: this run was begun from Python with an object that has no name; "
                f"resume it with sqsgd.train(out=..., resume=True, {name}=...)"
            )
    device = find_device(config.device)
    objective = make_objective(config.loss, given["loss"]) if "loss" in given else find_objective(config.loss)
    _, model_name = extractor_and_model(config.features, config.model)
    dataset = loaded or load_data(config, given)
    if config.validation:
        dataset = hold_out(dataset, config.validation, config.seed)
    if config.test_images:
        dataset = first_tests(dataset, config.test_images)
    if config.clients == EVERY_CLIENT and config.partition == NATURAL and dataset.owners is not None:
        config = dataclasses.replace(config, clients=int(dataset.owners.max()) + 1)
    if config.clients > len(dataset.train_labels) and config.partition not in ("drawn", NATURAL):
        raise ValueError(
            f"clients = {config.clients} is more than the {len(dataset.train_labels)} "
            f"training images of dataset = {config.dataset!r}; partition = 'drawn' lets them draw one each"
        )
    model = make_model(
        model_name, dataset.classes, dataset.in_shape, config.seed, given.get("model"), head=dataset.head
    )
    return make_problem(
        dataset,
        model,
        clients=config.clients,
        partition_scheme=config.partition,
        batch=config.batch,
        participants=config.participants,
        seed=config.seed,
        workers=config.workers or cores(),
        objective=objective,
        device=device,
        minibatch=config.minibatch,
    )


def load_data(config: RunConfig, given: Mapping[str, Any] | None = None) -> Dataset:
    """The whole dataset, with features in place of its inputs if the run has them.

    Features are extracted from all images, so that slow ones are found again whatever is held out.
    """
    features, _ = extractor_and_model(config.features, config.model)
    if given and "dataset" in given:
        dataset = given_dataset(config.dataset, given["dataset"])
    else:
        dataset = load_dataset(config.dataset, config.data_dir or None)
    return extracted(dataset, features) if features else dataset


def _scheme(config: RunConfig, dim: int) -> Scheme:
    """The named scheme, or the best for the budgets; raises ValueError naming the wrong key."""
    for name, key in (("name", "scheme"), ("dim", "model"), ("epsilon", "epsilon"), ("bytes", "bytes")):
        if name in config.options:
            raise ValueError(f"options.{name} = {config.options[name]!r} is not an option: set {key} instead")
    if config.bytes > 4 * dim:
        raise ValueError(
            f"bytes = {config.bytes} is more than the whole gradient, {dim} float32 numbers: "
            f"at most {4 * dim}"
        )
    name = config.scheme
    if name == "auto":
        name = planner.automatic_scheme(dim=dim, epsilon=config.epsilon, bytes=config.bytes)
    scheme = make_scheme(name, dim=dim, epsilon=config.epsilon, bytes=config.bytes, **config.options)
    if config.once and scheme.residual:
        raise ValueError(
            f"scheme = {name!r} keeps a residual for a client's next report, and with participation "
            "= 'once' there is none: write scheme = 'auto' for the best that keeps nothing"
        )
    return scheme


def outlook(config: RunConfig, dim: int) -> str:
    """One line if a model of ``dim`` weights is predicted to learn little or nothing."""
    scheme, clients = _scheme(config, dim), config.participants or config.clients
    if softmax_once(config):
        found = planner.once_outlook(scheme, config.clients)
    else:
        found = planner.outlook(scheme, clients, config.rounds, config.bound or scheme.first_bound)
    return f"{scheme.name} at epsilon {config.epsilon:g}: {found}" if found else ""


def left_out(run: Run) -> str:
    """One line if some of the data's own clients do not take part."""
    owners = run.problem.dataset.owners
    if run.config.partition != NATURAL or owners is None or run.config.clients > int(owners.max()):
        return ""
    return (
        f"clients = {run.config.clients:,}: only the first of the data's {int(owners.max()) + 1:,} clients "
        "take part; leave clients out, and all do"
    )


def check_free(path: Path) -> None:
    """Raise ValueError if a new run cannot use this folder, or would replace files in it."""
    taken = next((place for place in (path, *path.parents) if place.is_file()), None)
    if taken is not None:
        raise ValueError(f"out = {str(path)!r}: {taken} is a file; name a folder that can be created")
    folder = RunFolder(path)
    if (path / CONFIG).exists() and (folder.begun or folder.metrics.exists()):
        raise ValueError(f"{path} holds a run already: --resume it, or choose another --out")
    if (path / SWEEP).exists():
        raise ValueError(f"{path} holds a sweep: choose another --out")
    if folder.federation or (folder.metrics.exists() and folder.metrics.stat().st_size):
        raise ValueError(f"{path} holds a training that is not of `sqsgd train`: choose another --out")
    for name in (CONFIG, MODEL, SUMMARY, "report.html"):
        if (path / name).exists():
            raise ValueError(f"{path} holds a {name}, which a run would replace: choose another --out")


def start(run: Run) -> State:
    """A new run's folder and first state; refuses a folder with a run, or with files it would replace."""
    check_free(run.folder)
    folder = RunFolder(run.folder)
    kept, place = run.config.ledgers, run.folder.resolve()
    if kept and run.config.once and run.config.secure and Path(kept).is_relative_to(place):
        raise ValueError(
            f"ledgers = {kept!r} is in {run.folder}, where results go: a ledger says in which round its user "
            "reported, which is a secret here; choose a folder elsewhere"
        )
    state = federated.initial_state(run.problem.initial(), run.settings)
    folder.begin(state, _about(run, _new_order(run)), run.config.to_toml())
    return state


def _about(run: Run, order: str) -> dict[str, Any]:
    """What a checkpoint says about its run, beside the state."""
    rate, data, labels = run.settings.optimizer.rate, _shapes(run), _labels(run)
    about = {"order": order, "rate": rate, "data": data, "labels": labels}
    return {**dataclasses.asdict(run.config), **about}


def _shapes(run: Run) -> list[list[int]]:
    """The shapes of the training and the test inputs: other data cannot take their place unnoticed."""
    data = run.problem.dataset
    return [list(data.train_inputs.shape), list(data.test_inputs.shape)]


def _labels(run: Run) -> int:
    """A checksum of all labels. Inputs may be features, whose last bits depend on the machine."""
    found = 0
    for labels in (run.problem.dataset.train_labels, run.problem.dataset.test_labels):
        found = zlib.crc32(labels.cpu().numpy().tobytes(), found)
    return found


def _new_order(run: Run) -> str:
    """The name of the file with the secret order of a new run's users; or what there is instead."""
    config = run.config
    if not config.once:
        return ""
    if run.settings.order is not None:
        return SEEDED
    return keep_order(secret_order(config.clients, config.participants or 1), run.folder)


def resume(run: Run) -> State:
    """The last checkpoint's state; refuses one that was made under another configuration."""
    folder = RunFolder(run.folder)
    state, kept = folder.load()
    kept = {**dataclasses.asdict(RunConfig()), **kept}  # keys that came later had their defaults
    kept["decay"] = "none" if kept["decay"] == "auto" else kept["decay"]
    if "code" in run.config.options:  # ``prepare`` adds it to runs that were begun without it
        kept["options"] = {"code": run.config.options["code"], **kept["options"]}
    # These decide who is in a round, or the size of its step.
    ruled = not run.config.lr and "rate" not in kept and run.scheme.mechanism.fixed_length
    fixed = {"rounds"} if run.config.once or run.config.decay != "none" or ruled else set()
    for name, value in dataclasses.asdict(run.config).items():
        if (name not in MAY_CHANGE or name in fixed) and kept[name] != value:
            raise ValueError(
                f"{run.folder / CONFIG}: {name} = {value!r}, but this run was begun with {kept[name]!r}: "
                "restore that value, or start again with another --out"
            )
    if kept.get("data", _shapes(run)) != _shapes(run):  # earlier versions kept neither
        before, now = (" and ".join(map(str, map(tuple, data))) for data in (kept["data"], _shapes(run)))
        raise ValueError(
            f"dataset = {run.config.dataset!r} has training and test inputs of shapes {now}, but this run "
            f"was begun with {before}: give the same data, or start again with another --out"
        )
    if kept.get("labels", _labels(run)) != _labels(run):
        raise ValueError(
            f"dataset = {run.config.dataset!r} has other labels than those with which this run was begun: "
            "give the same data in the same order, or start again with another --out"
        )
    if run.config.once and "order" not in kept:
        raise ValueError(
            f"{run.folder} was begun by an earlier version, whose order of users and rotations were public: "
            "it cannot be resumed; start again with another --out"
        )
    if run.unrepeatable and folder.last_begun == state.round and not folder.finished:
        state = dataclasses.replace(state, lost=state.round)
    if state.weights.size != run.problem.dim:
        raise ValueError(f"the checkpoint has {state.weights.size} weights, the model {run.problem.dim}")
    return state


def train(run: Run, state: State, stop: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """The remaining rounds, each written before its record is yielded; then the model and the summary.

    ``stop`` is called after each round. If it returns True, the state is saved and training ends there.
    """
    config, folder = run.config, RunFolder(run.folder)
    kept = folder.load()[1]
    order = kept.get("order", "")
    run = dataclasses.replace(run, settings=begun_settings(config, run.scheme, run.settings, kept))
    about = _about(run, order)
    if config.once and order != SEEDED and state.round < config.rounds:
        settings = dataclasses.replace(run.settings, order=kept_order(order))
        run = dataclasses.replace(run, settings=settings)
    board = _tensorboard(run.folder, state.round) if config.tensorboard else None
    # Flower's clients keep their last round only, so nothing older can be resumed.
    every = 1 if run.unrepeatable or config.engine == "flower" else config.checkpoint_every
    with folder.held():
        folder.keep_rounds(state.round)
        try:
            for record, after in _rounds(run, state, folder):
                if after.round == config.rounds or after.round % config.evaluate_every == 0:
                    record = dataclasses.replace(record, **run.problem.measure(after.weights).recorded())
                folder.write(record.to_dict())
                state = after  # only now: a checkpoint needs a line for each of its rounds
                if state.round == config.rounds or state.round % every == 0:
                    folder.save(state, about)
                if board is not None:
                    for name, value in record.to_dict().items():
                        if isinstance(value, int | float):
                            board.add_scalar(name, value, record.round)
                yield record
                if stop() and state.round < config.rounds:
                    folder.save(state, about)
                    return
        except KeyboardInterrupt:
            folder.save(state, about)
            raise
        if board is not None:
            board.close()
        folder.finish(run.problem.named_weights(state.weights), summary(run, folder.lines))
        forget_order(order)


def summary(run: Run, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of a finished run, from its metrics."""
    config = run.config
    return summarise(
        lines,
        run.scheme,
        lr=run.settings.optimizer.rate,
        decay=config.decay,
        rounds=config.rounds,
        once=config.once,
        dataset=config.dataset,
        held_out=run.problem.dataset.held_out,
        model=config.model,
        loss=config.loss,
        features=config.features,
        participation=config.participation,
        clients=config.clients,
        noise="secure" if config.secure else "seeded: an experiment, protects nobody",
        **(about_once(run.scheme, "run", lines, seeded=not config.secure) if config.once else {}),
    )


def _rounds(run: Run, state: State, folder: RunFolder) -> Iterator[tuple[Record, State]]:
    parts, config = (run.problem, run.scheme, run.settings), run.config
    if config.engine == "flower":
        from sqsgd.flower.simulation import simulated_rounds

        yield from simulated_rounds(
            *parts, state, config=config, folder=run.folder, load_problem=load_problem
        )
        return
    rounds = federated.run(*parts, state, config.rounds)
    while state.round < config.rounds:
        if run.unrepeatable:
            folder.begin_round(state.round)
        record, state = next(rounds)
        yield record, state


def _tensorboard(folder: Path, rounds: int) -> Any:
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=rounds)
