"""One run from configuration to summary, in a folder of its own; resumable."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.numpy import save

from sqsgd import federated
from sqsgd.core import Scheme
from sqsgd.experiments.settings import make_settings
from sqsgd.federated import Record, Settings, State
from sqsgd.files.durable import write_atomically
from sqsgd.files.json_numbers import worded
from sqsgd.learning.datasets import Dataset, first_tests, hold_out, load_dataset
from sqsgd.learning.features import extracted, extractor_and_model
from sqsgd.learning.models import make_model
from sqsgd.learning.problem import LearningProblem, make_problem
from sqsgd.planner import stateless_choices
from sqsgd.runs.checkpoint import load_state, save_state
from sqsgd.runs.config import RunConfig, cores
from sqsgd.runs.summary import summarise
from sqsgd.schemes import check_name, make_scheme

BEGUN = "begun"
"""Where reports cannot be made twice: the file with the number of the last round that was begun."""
MAY_CHANGE = ("rounds", "workers", "evaluate_every", "checkpoint_every", "data_dir", "tensorboard")
"""What may be changed in config.toml before a run goes on: none of it touches a round that was made."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One line of metrics.jsonl: a record, with the held-out accuracy where it was measured."""

    record: Record
    accuracy: float | None
    test_loss: float | None
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what was not measured is left out, infinity is a word."""
        values = dataclasses.asdict(self.record)
        for name in ("bytes_up_serialised", "bytes_down_serialised"):
            if values[name] is None:
                del values[name]
        if self.accuracy is not None:
            values |= {"accuracy": self.accuracy, "test_loss": self.test_loss}
        return {name: worded(value) for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A prepared run: its parts fit together, and its folder can be written."""

    config: RunConfig
    folder: Path
    problem: LearningProblem
    scheme: Scheme
    settings: Settings

    @property
    def careful(self) -> bool:
        """Whether a round cannot be made anew: its noise would be other noise, or its clients refuse."""
        return self.config.engine == "local" and (self.config.secure or bool(self.config.ledgers))


def prepare(config: RunConfig, folder: Path) -> Run:
    """Load data and model, make the scheme, create the folder; raises ValueError naming the wrong key."""
    if config.scheme != "auto":
        check_name("scheme", config.scheme)
    if config.engine == "flower":
        missing = [name for name in ("flwr", "ray") if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(f"engine = 'flower' needs {' and '.join(missing)}: pip install 'sqsgd[flower]'")
    features, model_name = extractor_and_model(config.features, config.model)
    dataset = _data(config, features)
    if config.clients > len(dataset.train_labels) and config.partition != "drawn":
        raise ValueError(
            f"clients = {config.clients} is more than the {len(dataset.train_labels)} "
            f"training images of dataset = {config.dataset!r}; partition = 'drawn' lets them draw one each"
        )
    model = make_model(model_name, dataset.classes, dataset.in_shape, config.seed)
    problem = make_problem(
        dataset,
        model,
        clients=config.clients,
        partition_scheme=config.partition,
        batch=config.batch,
        participants=config.participants,
        seed=config.seed,
        workers=config.workers or cores(),
        once=config.once,
    )
    scheme = _scheme(config, problem.dim)
    if config.scheme == "auto":  # from here on the run has the name of what it uses
        config = dataclasses.replace(config, scheme=scheme.name)
    if config.ledgers:
        place = Path(config.ledgers).resolve()  # the same folder, wherever the run goes on
        if place.exists() and not place.is_dir():
            raise ValueError(f"ledgers = {config.ledgers!r} is a file; name a folder")
        config = dataclasses.replace(config, ledgers=str(place))
    settings = make_settings(config, scheme, bool(features) and model_name == "linear")
    return Run(config=config, folder=folder, problem=problem, scheme=scheme, settings=settings)


def _data(config: RunConfig, features: str) -> Dataset:
    """The data set, as the run sees it: what is held out, what is measured on, features for inputs."""
    dataset = load_dataset(config.dataset, config.data_dir or None)
    if config.validation:
        dataset = hold_out(dataset, config.validation, config.seed)
    if config.test_images:
        dataset = first_tests(dataset, config.test_images)
    return extracted(dataset, features) if features else dataset


def _scheme(config: RunConfig, dim: int) -> Scheme:
    """The scheme that is named, or the best for the budgets; raises ValueError naming the wrong key."""
    for name in ("name", "dim", "epsilon", "bits"):
        if name in config.options:
            raise ValueError(f"options.{name} = {config.options[name]!r} is no option, but a key of its own")
    if config.bytes > 4 * dim:
        raise ValueError(
            f"bytes = {config.bytes} is more than the whole gradient of {dim} numbers as float32: "
            f"at most {4 * dim}"
        )
    name, bits = config.scheme, 8 * config.bytes
    if name == "auto":
        name = stateless_choices(dim=dim, epsilon=config.epsilon, bits=bits)[0].name
    scheme = make_scheme(name, dim=dim, epsilon=config.epsilon, bits=bits, **config.options)
    if config.once and scheme.residual:
        raise ValueError(
            f"scheme = {name!r} keeps a residual for a client's next report, and with participation "
            "= 'once' there is none: write scheme = 'auto' for the best that keeps nothing"
        )
    return scheme


def start(run: Run) -> State:
    """A new run's folder and first state; refuses a folder that holds a run."""
    taken = next((place for place in (run.folder, *run.folder.parents) if place.is_file()), None)
    if taken is not None:
        raise ValueError(f"out = {str(run.folder)!r}: {taken} is a file; name a folder that may be made")
    run.folder.mkdir(parents=True, exist_ok=True)
    if (run.folder / "config.toml").exists():
        raise ValueError(f"{run.folder} holds a run already: --resume it, or choose another --out")
    (run.folder / "metrics.jsonl").write_bytes(b"")
    state = federated.initial_state(run.problem.initial(), run.settings)
    save_state(run.folder, state, dataclasses.asdict(run.config))
    write_atomically(run.folder / "config.toml", run.config.to_toml().encode())  # last: now it can be resumed
    return state


def resume(run: Run) -> State:
    """The last checkpoint's state; refuses one that was made under another configuration."""
    state, kept = load_state(run.folder)
    kept = {**dataclasses.asdict(RunConfig()), **kept}  # a key that came later had its default
    # These decide who is in a round, or how far it goes.
    fixed = {"rounds"} if run.config.once or run.config.decay != "none" else set()
    for name, value in dataclasses.asdict(run.config).items():
        if (name not in MAY_CHANGE or name in fixed) and kept[name] != value:
            raise ValueError(
                f"{run.folder / 'config.toml'}: {name} = {value!r}, but this run was begun with "
                f"{kept[name]!r}: put that back, or start again with another --out"
            )
    begun = run.folder / BEGUN
    if run.careful and begun.exists() and int(begun.read_text()) == state.round:
        state = dataclasses.replace(state, lost=state.round)
    if state.weights.size != run.problem.dim:
        raise ValueError(f"the checkpoint has {state.weights.size} weights, the model {run.problem.dim}")
    return state


@contextlib.contextmanager
def _metrics_of(run: Run, rounds: int) -> Iterator[BinaryIO]:
    """metrics.jsonl with the lines of the first rounds; the others are dropped, they will be made anew.

    One process at a time may write them, so that no two can train in one folder.
    """
    path = run.folder / "metrics.jsonl"
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is training in {run.folder}") from None
        lines = 0
        while lines < rounds and file.readline().endswith(b"\n"):
            lines += 1
        if lines < rounds:
            raise ValueError(f"{path} has {lines} of the checkpoint's {rounds} rounds: it was damaged")
        file.truncate()
        yield file


def train(run: Run, state: State, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
    """The rounds that are left, each written down before it is yielded; then model and summary.

    ``stop`` is asked after each round; where it says so the state is kept, to resume from, and that is all.
    """
    config, folder = run.config, run.folder
    board = _tensorboard(folder, state.round) if config.tensorboard else None
    # Flower's clients keep their last round only, so that nothing older can be resumed.
    every = 1 if run.careful or config.engine == "flower" else config.checkpoint_every
    with _metrics_of(run, state.round) as metrics:
        (folder / "summary.json").unlink(missing_ok=True)

        def keep() -> None:
            metrics.flush()
            os.fsync(metrics.fileno())
            save_state(folder, state, dataclasses.asdict(config))

        def begin() -> None:
            if run.careful:
                write_atomically(folder / BEGUN, str(state.round).encode())

        try:
            begin()
            for record, after in _rounds(run, state):
                progress = _measured(run, record, after)
                metrics.write(json.dumps(progress.to_dict()).encode() + b"\n")
                state = after
                if state.round == config.rounds or state.round % every == 0:
                    keep()
                if board is not None:
                    _show(board, progress)
                yield progress
                if stop() and state.round < config.rounds:
                    keep()
                    return
                begin()
        except KeyboardInterrupt:
            keep()
            raise
    if board is not None:
        board.close()
    write_atomically(folder / "model.safetensors", _named_weights(run, state))
    content = json.dumps(summarise(run), indent=2, allow_nan=False)
    write_atomically(folder / "summary.json", content.encode())


def _rounds(run: Run, state: State) -> Iterator[tuple[Record, State]]:
    if run.config.engine == "local":
        return federated.run(run.problem, run.scheme, run.settings, state, run.config.rounds)
    from sqsgd.flower.simulation import simulated_rounds

    return simulated_rounds(run, state)


def _measured(run: Run, record: Record, after: State) -> Progress:
    """The round's record, with the held-out accuracy if it is time for that."""
    config, accuracy, loss = run.config, None, None
    if after.round == config.rounds or after.round % config.evaluate_every == 0:
        accuracy, loss = run.problem.evaluate(after.weights)
    return Progress(record=record, accuracy=accuracy, test_loss=loss, rounds=config.rounds)


def _show(board: Any, progress: Progress) -> None:
    for name, value in progress.to_dict().items():
        if isinstance(value, int | float):
            board.add_scalar(name, value, progress.record.round)


def _tensorboard(folder: Path, rounds: int) -> Any:
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=rounds)


def _named_weights(run: Run, state: State) -> bytes:
    """The model's whole state under its own names: trained, frozen and constant parts."""
    return save(run.problem.named_weights(state.weights))
