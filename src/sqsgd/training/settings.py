"""The settings of a training: ``Settings``, which every engine shares, and ``RunConfig``, a simulated run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

from sqsgd._internal import checks
from sqsgd._internal.files import read_toml
from sqsgd.core import Scheme
from sqsgd.privacy.planner import automatic_scheme
from sqsgd.schemes import make_scheme
from sqsgd.schemes.sqsgd import CODED, code_of
from sqsgd.schemes.sqsgd_record import BATCHINGS, silo_options
from sqsgd.training.rates import ONCE_BOUND, RECORD_BOUND, learning_rate, record_rate, softmax_rate

PAPER_EPSILON = 400.0  # of one report: the default of the commands; the library has none
IN_MEMORY = "in-memory"  # in place of an object's name that another process could import
OPTIMIZERS, DECAYS, ENGINES = ("sgd", "momentum", "adam"), ("auto", "none", "linear"), ("local", "flower")
FEDERATIONS = ("nodes", "devices")  # engines of run folders that a federation wrote
MOST_CLIENTS, USUAL_CLIENTS, USUAL_ROUNDS = 2**31, 10, 600
MOST_REPORTS = 10_000
USUAL_BYTES = 256
RECORD, RECORD_ROUNDS = "sqsgd-record", 200


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings for reports and model updates, which are used by all engines.

    Settings that are zero (or ``auto``) are determined by ``fitted``. The server requires ``lr`` and
    ``bound``.

    Raises:
        ValueError: If a field is invalid.

    >>> settings = Settings(epsilon=40.0, seed=1, secure=True, lr=0.5, bound=1.0, rounds=4, decay="linear")
    >>> [settings.rate_at(round) for round in range(4)]
    [0.5, 0.375, 0.25, 0.125]
    """

    epsilon: Annotated[float, "Privacy budget of one report, or of the whole run for privacy per record."]
    seed: Annotated[int, "Seed for everything except secure noise."]
    secure: Annotated[bool, "Use noise from the operating system, so that the run cannot be repeated."]
    """If false, the noise of a simulation is derived from the public seed and does not protect anyone.
    tests/training/test_settings.py::test_who_draws_the_noise_has_no_default."""
    scheme: Annotated[
        str, "A name from sqsgd schemes, auto (the best for your settings), or package.module:function."
    ] = "auto"
    """With ``auto``, ``sqsgd`` with an average is used if clients report in each round, and otherwise the
    best scheme without state (``privacy.planner.automatic_scheme``)."""
    bytes: Annotated[int, "Bytes of a report's codes; 0: 256, or per record the whole vector."] = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the scheme, such as ``levels`` or ``adaptive``."""
    rounds: Annotated[int, "Total number of rounds; 0: unknown."] = 0
    lr: Annotated[float, "Initial learning rate; 0 computes it from the budget."] = 0.0
    optimizer: Annotated[str, "sgd, momentum or adam."] = "sgd"
    decay: Annotated[str, "Decay of the learning rate: linear to zero (auto, linear), or none."] = "auto"
    bound: Annotated[float, "Initial bound; 0 selects the default of the scheme."] = 0.0
    track: Annotated[bool, "Adapt the bound to the privatised magnitudes."] = True
    clip_norm: Annotated[float, "Clipping norm (l2) of vectors or records; 0: none, or selected."] = 0.0
    delta: Annotated[float, "Per record: delta of the whole run."] = 1e-5
    sampling: Annotated[
        float, "Per record: share of its records in a report; 0: as few as cost no noise."
    ] = 0.0
    batching: Annotated[str, "Per record: poisson, or disjoint batches in turn."] = "poisson"
    records: Annotated[float, "Per record: public number of records per client; 0: rows / clients."] = 0.0
    normalise: Annotated[bool, "Per record: scale every gradient to the clipping norm."] = False
    alpha: Annotated[float, "Factor for the gradient added to the residual (the paper's α)."] = 1.0
    beta: Annotated[float, "Factor for the gradient in the report (the paper's β)."] = 1.0

    def __post_init__(self) -> None:
        checks.real("epsilon", self.epsilon, 0.01, 1e5)
        checks.integer("bytes", self.bytes, 0, 2**37)
        checks.integer("rounds", self.rounds, 0, MOST_CLIENTS)
        checks.integer("seed", self.seed, 0, 2**64 - 1)
        checks.real("lr", self.lr, 0.0, 1e12)
        checks.real("bound", self.bound, 1e-6 if self.bound else 0.0, 1e30)
        checks.real("clip_norm", self.clip_norm, 0.0, 1e6)
        checks.real("alpha", self.alpha, 0.0, 1e6)
        checks.positive("beta", self.beta)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("decay", self.decay, DECAYS)
        _one_of("batching", self.batching, BATCHINGS)
        checks.real("delta", self.delta, 1e-30, 0.1)
        checks.real("sampling", self.sampling, 0.0, 1.0)
        checks.real("records", self.records, 0.0, 2.0**40)
        if not isinstance(self.secure, bool):
            raise ValueError(f"secure = {self.secure!r} must be true or false")

    @property
    def own_scheme(self) -> bool:
        """Whether a custom scheme is used, which is only supported by local simulations."""
        return self.scheme == IN_MEMORY or ":" in self.scheme

    def rate_at(self, round: int) -> float:
        """Return the learning rate of a round."""
        left = max(1e-9, 1 - round / self.rounds) if self.decay == "linear" and self.rounds else 1.0
        return self.lr * left

    def budget(self, dim: int) -> int:
        """Return the number of bytes for the codes of a report, limited to the entire vector by default."""
        return self.bytes or min(USUAL_BYTES, 4 * dim)

    def make_scheme(self, dim: int, *, visits: float = 1.0, apart: float = 1.0, once: bool = False) -> Scheme:
        """Create the scheme for ``dim`` weights, or select the best one for ``visits`` reports per client.

        The number of rounds between two reports of a client is given by ``apart``. With ``once``, users are
        only identified by secret slots, and schemes with a residual raise an error.
        """
        for name, key in (("name", "scheme"), ("dim", "model"), ("epsilon", "epsilon"), ("bytes", "bytes")):
            if name in self.options:
                given = self.options[name]
                raise ValueError(f"options.{name} = {given!r} is not an option: set {key} instead")
        if self.scheme == RECORD:
            return self._record_scheme(dim)
        if self.bytes > 4 * dim:
            whole = f"the whole gradient, {dim} float32 numbers: at most {4 * dim}"
            raise ValueError(f"bytes = {self.bytes} is more than {whole}")
        name, options = self.scheme, self.options
        known: dict[str, Any] = {"dim": dim, "epsilon": self.epsilon, "bytes": self.budget(dim)}
        if name == "auto":
            name, options = automatic_scheme(**known, visits=visits, apart=apart, options=options)
        scheme = make_scheme(name, **known, **options)
        if once and scheme.keeps_state:
            raise ValueError(
                f"scheme = {name!r} keeps a residual for a client's next report, which would link its "
                "reports: write scheme = 'auto' for the best that keeps nothing"
            )
        return scheme

    def _record_scheme(self, dim: int) -> Scheme:
        """Return the scheme per record: all rounds together have this ε and δ."""
        known = (self.epsilon, self.delta, self.rounds or RECORD_ROUNDS, self.records)
        options = {**silo_options(*known, share=self.sampling, batching=self.batching), **self.options}
        return make_scheme(RECORD, dim=dim, epsilon=self.epsilon, bytes=self.bytes or None, **options)

    def check_fits(self, scheme: Scheme) -> None:
        """Raise ValueError if the scheme would ignore the clipping norm, or the factors of the residual."""
        scheme.check_clip(self.clip_norm or None)
        no_residual = scheme.average or scheme.momentum or not scheme.keeps_state
        if no_residual and (self.alpha, self.beta) != (1.0, 1.0):
            raise ValueError(
                f"alpha = {self.alpha:g}, beta = {self.beta:g}: {scheme.name!r} keeps no residual to weigh; "
                "leave them out, or choose a scheme that sends a block, without average and momentum"
            )

    def chosen(self, scheme: Scheme) -> Self:
        """Select the scheme, the code and the decay if they are set to their default values."""
        code = {"code": code_of(scheme.mechanism)} if scheme.name in CODED and not self.own_scheme else {}
        average = {"average": scheme.average} if scheme.average and not self.own_scheme else {}
        decay = "linear" if self.decay == "auto" else self.decay
        if scheme.sums_records:
            same: dict[str, Any] = {"sampling": scheme.privacy.share, "rounds": scheme.privacy.reports}
            return dataclasses.replace(self, decay=decay, bytes=-(-scheme.code_bits // 8), **same)
        named, options = self.scheme if self.own_scheme else scheme.name, {**self.options, **code, **average}
        few = min(self.budget(scheme.dim), 4 * scheme.dim)
        return dataclasses.replace(self, scheme=named, decay=decay, options=options, bytes=few)

    def fitted(self, scheme: Scheme, clients: int, *, rule: str = "") -> Self:
        """Determine all remaining settings for a given number of reports per round, as in ``rates.py``.

        For linear models with one report per user, ``rule`` is a key of ``rates.ONCE_BOUND``.
        """
        chosen, rounds = self.chosen(scheme), self.rounds or 600
        if scheme.sums_records:
            bound = self.clip_norm or self.bound or RECORD_BOUND[rule or "other"]
            lr = self.lr or record_rate(scheme, clients, bound, rule or "other")
            return dataclasses.replace(chosen, bound=bound, clip_norm=0.0, lr=lr)
        self.check_fits(scheme)
        bound = self.bound or (ONCE_BOUND[rule] if rule else scheme.first_bound)
        if rule:
            lr = softmax_rate(scheme, clients, rounds, bound, rule=rule)
        else:
            lr = learning_rate(scheme, clients, self.optimizer, rounds=rounds, bound=bound)
        falls = chosen.decay == "linear" and self.rounds > 0
        lr = self.lr or lr * (1.0 if falls else 0.5)  # a constant rate is half as large
        return dataclasses.replace(chosen, bound=bound, lr=lr)

    @property
    def about(self) -> dict[str, Any]:
        """The settings which are included in the summary along with the privacy guarantee."""
        return {name: getattr(self, name) for name in ("scheme", "lr", "decay", "optimizer", "seed")}

    def to_toml(self) -> str:
        """Return all settings as TOML."""
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """The configuration of a simulated training run, including the dataset and the model.

    Except for ``epsilon``, all fields have default values. They correspond to training LeNet-5 on 4,000
    handwritten digits, which takes one or two minutes.

    >>> RunConfig(epsilon=8.0, clients=100, participation="once", rounds=20).asked
    5
    """

    seed: int = 0
    secure: bool = False
    rounds: Annotated[int, "Number of rounds; 0 selects 600, or 10 to 100 with once."] = 0
    """When using ``once``, the default is chosen such that a round has more than 100 clients if possible."""
    dataset: Annotated[str, "mnist5k, mnist, ..., a .csv file or package.module:factory."] = "mnist5k"
    label: Annotated[str, "Column of a table to predict; a number if it has a range."] = ""
    owner: Annotated[str, "Column of a table with the owner of each row; empty: all differ."] = ""
    ranges: dict[str, Any] = field(default_factory=dict)
    """The public ranges of numeric columns in a table, for example age = [0, 120]."""
    categories: dict[str, Any] = field(default_factory=dict)
    """The public categories of all other columns in a table, for example sex = ["f", "m"]."""
    data_dir: Annotated[str, "Folder of the datasets; by default $SQSGD_DATA."] = ""
    model: Annotated[str, "lenet5, resnet110, ... or package.module:factory."] = "lenet5"
    loss: Annotated[str, "cross-entropy, squared-error, multi-label or module:name."] = "cross-entropy"
    """They are used for classes, numbers, and multiple binary labels. Custom losses are also supported."""
    features: Annotated[
        str,
        "Public features: hog, soft-hog, font-digits, efficientnet-lite0 or package.module:factory; several "
        "with weights: soft-hog:0.7+font-digits:0.7.",
    ] = ""
    clients: Annotated[int, "Number of clients; 0 selects the owners in the data, or 10."] = 0
    participation: Annotated[str, "all, a number of clients per round, a fraction (0.1), or once."] = "all"
    """With ``all``, each client uses a batch of its data in each round. If a number or a fraction of clients
    is given, they use all of their data. With ``once``, clients participate once per pass in secret order."""
    reports: Annotated[int, "Reports per client with once: one in each pass, in a new order."] = 1
    """Values above 1 imply ``once``. Each report increases the total epsilon."""
    visits: Annotated[int, "1: send all reports of a client in one round; 0: send one in each pass."] = 0
    minibatch: Annotated[bool, "Use one batch per client if participation is a number."] = False
    local_epochs: Annotated[int, "Number of local epochs (federated averaging); 0 disables it."] = 0
    """Clients report the mean gradient of their local steps, or the gradient of their batch or data for 0."""
    local_lr: Annotated[float, "Learning rate for the local steps of a client."] = 0.05
    partition: Annotated[str, "natural: by owner; iid, dirichlet:BETA, shards:N or drawn."] = "auto"
    """With drawn, one image is sampled for each client. By default (auto), natural is used if the data
    contain owners, and iid otherwise."""
    batch: Annotated[int, "Batch size of a client."] = 32
    validation: Annotated[float, "Fraction of the training images to evaluate on."] = 0.0
    test_images: Annotated[int, "Number of held-out images to evaluate on; 0 uses all."] = 0
    ledgers: Annotated[str, "Folder for the ledgers of the clients."] = ""
    """Clients use them to keep track of their privacy loss and to enforce their caps."""
    evaluate_every: Annotated[int, "Number of rounds between evaluations."] = 20
    checkpoint_every: Annotated[int, "Number of rounds between checkpoints."] = 20
    workers: Annotated[int, "Number of gradients to compute in parallel; 0 uses one per core."] = 0
    device: Annotated[str, "Device for the gradients: cpu, cuda, mps or auto."] = "cpu"
    engine: Annotated[str, "local, or flower to run the same training on Flower."] = "local"
    name: Annotated[str, "Name of the run in tables and figures."] = ""

    def __post_init__(self) -> None:
        checks.integer("reports", self.reports, 1, MOST_REPORTS)
        if self.reports > 1 and self.participation == "all":
            object.__setattr__(self, "participation", "once")
        object.__setattr__(self, "participation", str(self.participation))  # a number may be one
        if self.rounds == 0 and not self.once:
            usual = RECORD_ROUNDS if self.scheme == RECORD else USUAL_ROUNDS
            object.__setattr__(self, "rounds", usual)
        super().__post_init__()
        for name in ("batch", "evaluate_every", "checkpoint_every"):
            checks.integer(name, getattr(self, name), 1, MOST_CLIENTS)
        for name in ("clients", "test_images", "local_epochs"):
            checks.integer(name, getattr(self, name), 0, MOST_CLIENTS)
        checks.real("validation", self.validation, 0.0, 0.9)
        checks.real("local_lr", self.local_lr, 1e-9, 1e6)
        if self.minibatch and self.local_epochs:
            raise ValueError(
                "minibatch = true and local_epochs exclude each other: local steps take all batches"
            )
        checks.integer("workers", self.workers, 0, 1024)
        _one_of("engine", self.engine, ENGINES, also=FEDERATIONS)
        if self.engine == "flower" and self.ledgers:
            raise ValueError(f"ledgers = {self.ledgers!r}: with engine = 'flower' each client keeps its own")
        participants, asked = self.participants, self.participation
        if self.per_record and (self.once or self.minibatch):
            raise ValueError(
                f"participation = {asked!r}, minibatch = {self.minibatch}: with scheme = {RECORD!r} all "
                "clients, or a number of them, take part in a round; sampling says which records they draw"
            )
        if self.minibatch and (self.once or participants is None):
            raise ValueError(f"minibatch = true needs a number of clients as participation, not {asked!r}")
        self._check_passes()
        if participants is not None and 0 < self.clients < participants:
            most = f"at most clients = {self.clients}"
            raise ValueError(f"participation = {asked!r} must be 'all', 'once' or {most}")

    def on(self, owners: Any, rows: int) -> Self:
        """Adapt the configuration to the number of training rows and to their owners, if there are any.

        Args:
            owners: The owner (0, 1, 2, ...) of each row, or None.
            rows: The number of rows.
        """
        named = 0 if owners is None else int(owners.max()) + 1
        chosen = self.partition if self.partition != "auto" else "natural" if named else "iid"
        clients = self.clients or (rows if self.is_table and not named else named or USUAL_CLIENTS)
        rounds = self.rounds or max(1, usual_rounds(clients) // self.passes) * self.passes
        share = self.records or float(rows // clients)
        return dataclasses.replace(
            self, partition=chosen, clients=clients, rounds=rounds, records=share if self.per_record else 0.0
        )

    @property
    def per_record(self) -> bool:
        """Whether the guarantee is for records, not for clients."""
        return self.scheme == RECORD

    @property
    def is_table(self) -> bool:
        """Whether columns are declared: rows are scaled by public facts alone."""
        declared = self.label or self.owner or self.ranges or self.categories
        return bool(declared) or self.dataset.endswith(".csv")

    def _check_passes(self) -> None:
        """Raise ValueError unless each pass has as many rounds as the others, and clients for each round."""
        asked = f"reports = {self.reports}"
        if self.visits not in (0, 1, self.reports) or (self.visits and not self.once):
            raise ValueError(f"visits = {self.visits} with {asked} must be 1 (all in one round) or 0")
        if self.reports > 1 and not self.once:
            raise ValueError(f"{asked} needs participation = 'once', not {self.participation!r}")
        if self.engine == "flower" and self.reports > self.passes:
            raise ValueError("visits = 1: engine = 'flower' asks a node for one report in a round")
        if self.once and self.rounds % self.passes:
            raise ValueError(
                f"rounds = {self.rounds} cannot be cut into {self.passes} passes of one length, one for each "
                f"of reports = {self.reports}: a multiple of {self.passes} can"
            )
        if self.once and 0 < self.clients < self.rounds // self.passes:
            raise ValueError(
                f"rounds = {self.rounds // self.passes} is more than clients = {self.clients}: with "
                "participation = 'once' each round of a pass needs clients that have not answered in it"
            )

    @property
    def once(self) -> bool:
        """Whether each client takes part in at most one round of a pass, in a slot that does not name it."""
        return self.participation == "once"

    @property
    def passes(self) -> int:
        """How often all clients are gone through, each time in another order."""
        return 1 if self.visits == 1 else self.reports

    @property
    def participants(self) -> int | None:
        """Clients in a round; None: all of them."""
        if self.participation == "all":
            return None
        if self.once:
            return self.clients // max(1, self.rounds // self.passes)
        try:
            share = float(self.participation)
        except ValueError:
            share = 0.0
        if self.participation.isdecimal() and share >= 1:
            return int(self.participation)
        if self.participation.isdecimal() or not 0 < share <= 1:
            asked = f"participation = {self.participation!r}"
            raise ValueError(
                f"{asked} must be 'all', 'once', a number of clients per round or a fraction of them"
            )
        return max(1, round(share * self.clients))

    @property
    def asked(self) -> int:
        """Reports of a round: one of each client in it, or all of them in one visit."""
        return (self.participants or self.clients) * (self.reports // self.passes)

    @property
    def slots(self) -> dict[str, Any]:
        """What the order of users who take part once in a pass must know: arguments of ``Order``."""
        sizes = {"users": self.clients, "per_round": self.participants or self.clients}
        parts = {"rounds": self.rounds // self.passes, "one_visit": self.reports > self.passes}
        return {**sizes, **parts, "reports": self.reports}

    @property
    def average_reports(self) -> float:
        """Reports of a client that build on each other, on average: none do in secret slots."""
        return 1 if self.once else self.rounds * self.asked / max(1, self.clients)

    @property
    def apart(self) -> float:
        """Rounds from one report of a client to its next, on average."""
        return max(1, self.clients) / max(1, self.asked)

    @property
    def unrepeatable(self) -> bool:
        """Whether a round cannot be repeated: its noise would differ, or its clients would refuse."""
        return self.engine == "local" and (self.secure or bool(self.ledgers))


def usual_rounds(clients: int) -> int:
    """Of a run in which each client reports once: over 100 clients are in a round if they can."""
    return min(clients, max(10, min(100, clients // 101)))


def _one_of(name: str, value: str, known: tuple[str, ...], also: tuple[str, ...] = ()) -> None:
    if value not in (*known, *also):
        raise ValueError(f"{name} = {value!r} must be one of {', '.join(known)}")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


FIELDS = get_type_hints(RunConfig)
"""The type of each setting by its name."""


def load_config(path: str | Path) -> RunConfig:
    return make_config(read_config(path))


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the keys and values in a configuration's file, checked; errors name the file."""
    if Path(path).is_dir():
        raise ValueError(f"config = {str(path)!r} is a folder; name a TOML file, such as {path}/config.toml")
    values = read_toml(Path(path))
    if "arms" in values or "panels" in values:
        raise ValueError(f"{path} compares several runs: sqsgd compare --config {path}")
    make_config(values, where=str(path))
    return values


def make_config(values: Mapping[str, Any], where: str = "the configuration") -> RunConfig:
    """Return a configuration from keys and values. Without ``epsilon`` it has the paper's."""
    kinds = {name: kind if isinstance(kind, type) else dict for name, kind in FIELDS.items()}
    if type(values.get("participation")) in (int, float):
        values = {**values, "participation": str(values["participation"])}
    values = {"epsilon": PAPER_EPSILON, **checks.fields(values, kinds, where)}
    if "reports" in values:
        values = {"participation": "once", **values}
        if values["reports"] > 1 and values["participation"] == "all":
            raise ValueError(f"reports = {values['reports']} needs participation = 'once', not 'all'")
    per_record = values.get("scheme") == RECORD
    if RunConfig(**values).is_table:
        loss = "squared-error" if values.get("label") in values.get("ranges", {}) else "cross-entropy"
        usual = {"model": "linear", "scheme": "auto", "loss": loss}
        usual["participation"] = "all" if per_record else "once"
        values = {**usual, **values}
    return RunConfig(**values)
