"""The settings of a federation: its nodes, what is trained, what a node allows; stored in federation.toml."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tomli_w

from sqsgd._internal import checks
from sqsgd._internal.exact import total
from sqsgd._internal.files import read_toml
from sqsgd.federation.deploy.certificates import general_name
from sqsgd.schemes import check_name

NAME = "federation.toml"
HERE = ("127.0.0.1", "localhost")  # names that the server itself uses, always in its certificate
_COMMENT = "# What is trained; see `sqsgd deploy train`. What a node allows is in that node's node.conf.\n"


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that ``sqsgd deploy init`` decides. Each field is an option of it, and its text the help."""

    hosts: Annotated[tuple[str, ...], "Names or addresses of the server; nodes use the first."] = HERE[:1]
    port: Annotated[int, "The server's port; 0: 8000, or a free one on this machine alone.", 0, 65535] = 0
    link_port: Annotated[int, "Port of Flower's SuperLink, on 127.0.0.1 only; 0: init chooses.", 0, 65535] = 0
    nodes: Annotated[int, "Number of nodes.", 1, 1000] = 3
    rounds: Annotated[int, "Number of rounds.", 1, 10**6] = 20
    scheme: Annotated[str, "See sqsgd schemes; auto: the best for these rounds."] = "auto"
    unit: Annotated[str, "client; or record: epsilon is of all rounds."] = "client"
    epsilon: Annotated[float, "Budget of one report; per record, of the whole training.", 0.01, 1e5] = 400.0
    delta: Annotated[float, "Per record: delta of the whole training.", 1e-30, 0.1] = 1e-5
    records: Annotated[int, "Per record: public number of a node's records; 0: unknown.", 0, 2**40] = 0
    bytes: Annotated[int, "Bytes for the packed codes of one report; 0: chosen by init.", 0, 2**31] = 0
    max_epsilon: Annotated[float, "Cap of each node's ledger.", 0.0, 1e12] = 0.0  # 0: the cost of all rounds
    dataset: Annotated[str, "The dataset, divided among the nodes."] = "mnist5k"
    model: Annotated[str, "lenet5, resnet110, ... or package.module:factory."] = "lenet5"
    stop_at_epsilon: Annotated[float, "End before a node would have spent more; 0: never.", 0.0, 1e12] = 0.0
    evaluation_epsilon: Annotated[float, "Per record: of one evaluation at nodes; 0: none.", 0.0, 1e5] = 0.0
    evaluation_records: Annotated[int, "Public number of a node's test records.", 0, 2**40] = 0
    lr: Annotated[float, "Learning rate; 0 computes it from the budget.", 0.0, 1e6] = 0.0
    seed: Annotated[int, "Seed of the public randomness.", 0, 2**63 - 1] = 0
    min_nodes: Annotated[int, "Nodes that a round waits for; 0: more than half."] = 0
    min_answers: Annotated[int, "A round with fewer does not change the model; 0: half of those asked."] = 0
    round_timeout: Annotated[float, "Seconds to wait for answers.", 1.0, 86400.0] = 120.0
    wait_timeout: Annotated[float, "Seconds to wait for nodes.", 1.0, 86400.0] = 300.0
    evaluate_every: Annotated[int, "Rounds between evaluations at the server.", 1, 10**6] = 1

    def __post_init__(self) -> None:
        """Raise ValueError naming the key of an invalid value."""
        if not self.hosts:
            raise ValueError("host: give at least one name or address, such as 127.0.0.1")
        for host in self.hosts:
            general_name(host)
        for name, hint in get_type_hints(Federation, include_extras=True).items():
            kind, _, *limits = get_args(hint)
            if limits:
                check: Any = checks.integer if kind is int else checks.real
                object.__setattr__(self, name, check(name, getattr(self, name), *limits))  # of that type
        if self.scheme != "auto":
            check_name("scheme", self.scheme)
        if self.unit not in ("client", "record"):
            raise ValueError(f"unit = {self.unit!r} must be one of client, record")
        for name in ("min_nodes", "min_answers"):
            checks.integer(name, getattr(self, name), 0, self.nodes)
        for name in ("dataset", "model"):
            text = getattr(self, name)
            if not text or not text.isprintable() or set(text) & set("\"'\\ "):
                raise ValueError(f"{name} = {text!r} must be a name without spaces or quotes")
        if 0 < self.max_epsilon < self.epsilon:
            caps = f"max_epsilon = {self.max_epsilon:g} is below epsilon = {self.epsilon:g}"
            raise ValueError(f"{caps}: no node could answer a single round")

    @property
    def cap(self) -> float:
        whole = (
            self.epsilon + self.evaluation_epsilon if self.per_record else total(self.epsilon, self.rounds)
        )
        return self.max_epsilon or whole

    @property
    def per_record(self) -> bool:
        return self.unit == "record"

    @property
    def local(self) -> bool:
        """Whether no other machine can reach it."""
        return set(self.hosts) <= set(HERE)

    @property
    def certified(self) -> list[str]:
        """The hosts in the server's certificate."""
        return list(dict.fromkeys([*self.hosts, *HERE]))

    def run_config(self, out: Path, *, resume: bool) -> dict[str, Any]:
        """Return the configuration of the Flower app: the keys of its pyproject.toml."""
        other = {"hosts", "port", "link_port", "nodes", "rounds", "max_epsilon", "min_nodes"}
        values = {key: value for key, value in vars(self).items() if key not in other}
        return {
            **{key.replace("_", "-"): value for key, value in values.items()},
            "num-server-rounds": self.rounds,
            "clients-per-round": 0,
            "min-nodes": self.min_nodes or self.nodes // 2 + 1,
            "out": str(out),
            "resume": resume,
        }

    def to_toml(self) -> str:
        return _COMMENT + tomli_w.dumps(dataclasses.asdict(self))


def load_federation(folder: Path) -> Federation:
    """Return the federation in a folder; without one, a ValueError with the remedy."""
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{folder} has no {NAME}: create it with `sqsgd deploy init {folder}`")
    values = read_toml(path)
    if isinstance(values.get("hosts"), list):
        values["hosts"] = tuple(values["hosts"])
    kinds = {**get_type_hints(Federation), "hosts": tuple}
    return Federation(**checks.fields(values, kinds, str(path)))
