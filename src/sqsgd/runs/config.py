"""The configuration of a run: every option, from a TOML file or the command line."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from sqsgd import checks
from sqsgd.federated.robust import MEAN, check_kind
from sqsgd.files.toml_reader import read_toml
from sqsgd.training.optimizers import check_optimizer

DECAYS, ENGINES = ("auto", "none", "linear"), ("local", "flower")
MOST_CLIENTS = 2**31
EVERY_CLIENT = MOST_CLIENTS
"""All of the data's own clients, until the data are known."""
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A training run. The defaults train LeNet-5 on 4,000 real digits in one or two minutes."""

    scheme: str = "sqsgd"
    dataset: str = "mnist5k"
    data_dir: str = ""
    """Folder of the datasets; empty: $SQSGD_DATA, else the user's cache folder."""
    model: str = "lenet5"
    loss: str = "cross-entropy"
    """What is minimised: cross-entropy (classes, one per example or per token), squared-error (numbers),
    multi-label (rows of zeros and ones) or package.module:name, with metrics of its own."""
    features: str = ""
    """A public, fixed feature extractor in front of the model: hog, soft-hog, font-digits,
    efficientnet-lite0, package.module:factory, or several with weights: ``soft-hog:0.7+font-digits:0.7``."""
    clients: int = 10
    participation: str = "all"
    """``all``: every client in every round, with one batch each; a number: that many clients per round, with
    all their data; ``once``: clients / rounds per round, with all their data, and no client twice."""
    minibatch: bool = False
    """With a number as participation: each client uses one batch, as with ``all``, not all its data."""
    partition: str = "iid"
    """``iid``, ``dirichlet:BETA``, ``shards:N``, ``natural``: the data's own clients, or ``drawn``: any
    number of clients draw one image each."""
    batch: int = 32
    validation: float = 0.0
    """Share of the training images to hold out and measure on instead of the test set."""
    test_images: int = 0
    """Measure on the first held-out images only, this many; 0: all."""
    epsilon: float = 400.0
    bytes: int = 256
    rounds: int = 600
    lr: float = 0.0
    """Learning rate of the first round; 0: as large as the noise of the reports allows."""
    optimizer: str = "sgd"
    decay: str = "auto"
    """Decay of the learning rate: ``none``, or ``linear`` (``auto``), to zero after the last round."""
    bound: float = 0.0
    """Initial bound; 0: 1 for norms, 10 for the paper's range."""
    track: bool = True
    """Adapt the bound to the privatised magnitudes, if the scheme reports them."""
    clip: float = 0.0
    """l2 radius to clip gradient plus residual to; 0: none."""
    alpha: float = 1.0
    """Factor of the gradient that goes to the residual (the paper's α)."""
    beta: float = 1.0
    """Factor of the gradient that goes into the report (the paper's β)."""
    aggregate: str = MEAN
    """How reports become a step: ``mean``; ``trimmed`` or ``median of groups`` against lying clients."""
    weigh_by_size: bool = False
    """Weigh clients by their number of examples, which is then public."""
    ledgers: str = ""
    """Folder of the clients' own ledgers: each pays for its reports there, and refuses any above its cap."""
    secure: bool = False
    """Noise from the operating system: the run cannot be repeated."""
    seed: int = 0
    evaluate_every: int = 20
    """Rounds between two measurements on the held-out images."""
    checkpoint_every: int = 20
    """Rounds between two checkpoints, from which a run can be resumed."""
    workers: int = 0
    """Gradients computed in parallel; 0: one per core."""
    device: str = "cpu"
    """Where gradients are computed: cpu, cuda, mps, or auto: the first of cuda and mps that is there."""
    engine: str = "local"
    """``local``: in this process; ``flower``: over Flower's simulation, with the same result."""
    tensorboard: bool = False
    name: str = ""
    """What tables and figures call the run; empty: what distinguishes it from the others."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the scheme, such as ``levels`` or ``adaptive``."""

    def __post_init__(self) -> None:
        """Check everything that does not depend on the data or the model."""
        for name in ("clients", "batch", "bytes", "rounds", "evaluate_every", "checkpoint_every"):
            checks.integer(name, getattr(self, name), 1, MOST_CLIENTS)
        checks.integer("test_images", self.test_images, 0, 2**31)
        checks.real("validation", self.validation, 0.0, 0.9)
        checks.integer("seed", self.seed, 0, 2**64 - 1)
        checks.integer("workers", self.workers, 0, 1024)
        checks.real("epsilon", self.epsilon, 0.01, 1e5)
        for name in ("lr", "bound", "clip"):
            checks.real(name, getattr(self, name), 0.0, 1e6)
        check_optimizer(self.optimizer)
        check_kind(self.aggregate)
        if self.aggregate != MEAN and self.weigh_by_size:
            raise ValueError(
                f"weigh_by_size = true with aggregate = {self.aggregate!r}: a liar would choose its weight"
            )
        if self.decay not in DECAYS:
            raise ValueError(f"decay = {self.decay!r} must be one of {', '.join(DECAYS)}")
        if self.device not in DEVICES:
            raise ValueError(f"device = {self.device!r} must be one of {', '.join(DEVICES)}")
        if self.engine not in ENGINES:
            raise ValueError(f"engine = {self.engine!r} must be one of {', '.join(ENGINES)}")
        if self.engine == "flower" and self.weigh_by_size:
            raise ValueError("weigh_by_size = true: with engine = 'flower' nodes do not report their sizes")
        if self.engine == "flower" and self.ledgers:
            raise ValueError(f"ledgers = {self.ledgers!r}: with engine = 'flower' each client keeps its own")
        if self.once and self.weigh_by_size:
            raise ValueError(
                "weigh_by_size = true with participation = 'once': the weights are public and would tell "
                "which user fills a slot"
            )
        participants = self.participants
        if self.minibatch and (self.once or participants is None):
            raise ValueError(
                f"minibatch = true needs a number of clients as participation, not {self.participation!r}"
            )
        if self.once and self.rounds > self.clients:
            raise ValueError(
                f"rounds = {self.rounds} is more than clients = {self.clients}: with participation = 'once' "
                "each round needs clients that have not answered"
            )
        if participants is not None and participants > self.clients:
            raise ValueError(
                f"participation = {self.participation!r} must be 'all', 'once' or at most "
                f"clients = {self.clients}"
            )

    @property
    def once(self) -> bool:
        """Whether each client takes part in at most one round."""
        return self.participation == "once"

    @property
    def participants(self) -> int | None:
        """Clients in a round; None: all of them."""
        if self.participation == "all":
            return None
        if self.once:
            return self.clients // self.rounds
        if not self.participation.isdecimal() or int(self.participation) < 1:
            wanted = "'all', 'once' or a number of clients per round"
            raise ValueError(f"participation = {self.participation!r} must be {wanted}")
        return int(self.participation)

    def to_toml(self) -> str:
        """The complete configuration as TOML."""
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


FIELDS = {entry.name: entry for entry in dataclasses.fields(RunConfig)}


def load_config(path: str | Path) -> RunConfig:
    """The configuration in a file; missing keys have their defaults."""
    return make_config(read_config(path))


def read_config(path: str | Path) -> dict[str, Any]:
    """The keys and values in the file of a configuration, after checking them; errors name the file."""
    if Path(path).is_dir():
        raise ValueError(f"config = {str(path)!r} is a folder; name a TOML file, such as {path}/config.toml")
    values = read_toml(Path(path))
    if "arms" in values or "panels" in values:
        raise ValueError(f"{path} compares several runs: sqsgd compare --config {path}")
    make_config(values, where=str(path))
    return values


def make_config(values: Mapping[str, Any], where: str = "the configuration") -> RunConfig:
    """A configuration from keys and values, after checking names and types.

    With ``natural`` as partition and no number of clients, all of the data's own take part.
    """
    hints = get_type_hints(RunConfig).items()
    kinds = {name: kind if isinstance(kind, type) else dict for name, kind in hints}
    values = checks.fields(values, kinds, where)
    if values.get("partition") == "natural" and "clients" not in values:
        values["clients"] = EVERY_CLIENT
    return RunConfig(**values)
