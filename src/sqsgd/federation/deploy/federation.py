"""The settings of a federation: its nodes, what is trained, what a node allows; stored in federation.toml."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import tomli_w

from sqsgd._internal import checks
from sqsgd._internal.exact import total
from sqsgd._internal.files import read_toml
from sqsgd.federation.deploy.certificates import general_name
from sqsgd.schemes import check_name

NAME = "federation.toml"
HERE = ("127.0.0.1", "localhost")
"""The server's certificate always includes these, names that the server itself uses."""
_COMMENT = (
    "# What is trained; `sqsgd deploy train` reads it. What a node allows is in that node's node.conf.\n"
)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that ``sqsgd deploy init`` decides. The defaults train a small model in a minute or two."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Names or addresses of the server; nodes use the first."""
    port: int = 0
    """The port at which nodes reach the server; 0: ``init`` chooses one, to try it on one machine."""
    link_port: int = 0
    """The port of Flower's SuperLink, on 127.0.0.1 only; 0: ``init`` chooses one."""
    nodes: int = 3
    rounds: int = 20
    scheme: str = "sqsgd"
    epsilon: float = 400.0
    bytes: int = 256
    max_epsilon: float = 0.0
    """Lifetime cap of each node's ledger; 0: the cost of all rounds."""
    dataset: str = "mnist5k"
    model: str = "lenet5"
    lr: float = 0.0
    """Learning rate; 0: the default for the budget."""
    seed: int = 0
    min_nodes: int = 0
    """A round waits until this many nodes are connected; 0: more than half."""
    min_answers: int = 0
    """A round with fewer answers leaves the model unchanged; 0: half of the nodes that were asked."""
    round_timeout: float = 120.0
    wait_timeout: float = 300.0
    downlink: Literal["full", "delta"] = "full"
    evaluate_every: int = 1
    """Rounds between evaluations at the server."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the key of an invalid value."""
        if not self.hosts:
            raise ValueError("host: give at least one name or address, such as 127.0.0.1")
        for host in self.hosts:
            general_name(host)
        checks.integer("port", self.port, 0, 65535)
        checks.integer("link_port", self.link_port, 0, 65535)
        checks.integer("nodes", self.nodes, 1, 1000)
        checks.integer("rounds", self.rounds, 1, 10**6)
        check_name("scheme", self.scheme)
        checks.real("epsilon", self.epsilon, 0.01, 1e5)
        checks.integer("bytes", self.bytes, 1, 2**31)
        checks.real("max_epsilon", self.max_epsilon, 0.0, 1e12)
        checks.real("lr", self.lr, 0.0, 1e6)
        checks.integer("seed", self.seed, 0, 2**63 - 1)
        checks.integer("min_nodes", self.min_nodes, 0, self.nodes)
        checks.integer("min_answers", self.min_answers, 0, self.nodes)
        checks.real("round_timeout", self.round_timeout, 1.0, 86400.0)
        checks.real("wait_timeout", self.wait_timeout, 1.0, 86400.0)
        checks.integer("evaluate_every", self.evaluate_every, 1, 10**6)
        kinds = get_args(get_type_hints(Federation)["downlink"])
        if self.downlink not in kinds:
            raise ValueError(f"downlink = {self.downlink!r} must be one of {', '.join(kinds)}")
        for name in ("dataset", "model"):
            text = getattr(self, name)
            if not text or not text.isprintable() or set(text) & set("\"'\\ "):
                raise ValueError(f"{name} = {text!r} must be a name without spaces or quotes")
        if 0 < self.max_epsilon < self.epsilon:
            raise ValueError(
                f"max_epsilon = {self.max_epsilon:g} is below epsilon = {self.epsilon:g}: "
                "no node could answer a single round"
            )

    @property
    def cap(self) -> float:
        """The cap of a node's ledger: enough for every round, unless ``max_epsilon`` is given."""
        return self.max_epsilon or total(self.epsilon, self.rounds)

    @property
    def local(self) -> bool:
        """Whether all of it runs on this machine, and no other machine can reach it."""
        return set(self.hosts) <= set(HERE)

    @property
    def certified(self) -> tuple[str, ...]:
        """The hosts in the server's certificate."""
        return tuple(dict.fromkeys([*self.hosts, *HERE]))

    def run_config(self, out: Path, *, resume: bool) -> dict[str, Any]:
        """The configuration of the Flower app: the keys of its pyproject.toml."""
        same = ("scheme", "bytes", "seed", "dataset", "model", "min_answers", "downlink", "evaluate_every")
        floats = ("epsilon", "lr", "round_timeout", "wait_timeout")  # Flower insists on the type
        return {
            **{name.replace("_", "-"): getattr(self, name) for name in same},
            **{name.replace("_", "-"): float(getattr(self, name)) for name in floats},
            "num-server-rounds": self.rounds,
            "clients-per-round": 0,
            "min-nodes": self.min_nodes or self.nodes // 2 + 1,
            "out": str(out),
            "resume": resume,
        }

    def to_toml(self) -> str:
        """The whole federation, reloadable."""
        return _COMMENT + tomli_w.dumps(dataclasses.asdict(self))


def load_federation(folder: Path) -> Federation:
    """The federation in a folder; ValueError says what to do if there is none."""
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{folder} has no {NAME}: create it with `sqsgd deploy init {folder}`")
    values = read_toml(path)
    if isinstance(values.get("hosts"), list):
        values["hosts"] = tuple(values["hosts"])
    kinds = {
        name: kind if isinstance(kind, type) else tuple if name == "hosts" else str
        for name, kind in get_type_hints(Federation).items()
    }
    return Federation(**checks.fields(values, kinds, str(path)))
