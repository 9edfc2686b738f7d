"""What Flower's quickstart-pytorch learns with sqsgd: its network, its 10 nodes, its local training.

`.venv/bin/python benchmarks/quickstart.py [--rounds 3 10 30 100] [--settings FedAvg old default ...]` prints
the accuracy on images that no node has. The messages are real; nodes and server share one process, and the
noise is seeded. Each number of rounds is a training of its own, because the rate falls over them.
`--data cifar10` needs CIFAR-10's files (`sqsgd data list`); `--norm` puts batch normalisation after each
convolution.
"""

import argparse
import logging
from types import SimpleNamespace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn import functional

from sqsgd.flower import Simulation, SqsgdMod, SqsgdStrategy
from sqsgd.learning.datasets import load_dataset

NODES, BATCH = 10, 32
SETTINGS: dict[str, dict | None] = {
    "FedAvg": None,
    "old": {"scheme": "sqsgd", "bound": 1.0},
    "old-short": {"scheme": "sqsgd"},
    "signs": {"scheme": "sqsgd", "options": {"code": "signs"}},
    "long": {"bound": 1.0},
    "default": {},
    "epsilon-100": {"epsilon": 100.0, "bytes": 128},
    "epsilon-40": {"epsilon": 40.0, "bytes": 64},
    "epsilon-8": {"epsilon": 8.0, "bytes": 32},
    "FedAvgM": {"server_momentum": 0.9},
    "FedAdam": {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    "FedAdam-0.001": {"eta": 0.001},
}
"""``old``: the defaults before this table decided them; ``old-short`` and ``long`` change one of the two."""


def network(channels: int, side: int, norm: bool) -> nn.Module:
    """The network of PyTorch's 60-minute introduction, which the quickstart uses."""
    left = ((side - 4) // 2 - 4) // 2

    def block(before: int, after: int) -> list[nn.Module]:
        return [
            nn.Conv2d(before, after, 5),
            *([nn.BatchNorm2d(after)] if norm else []),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    dense = [nn.Linear(16 * left**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*block(channels, 6), *block(6, 16), nn.Flatten(), *dense)


class InProcess(Grid):
    """Nodes that answer at once, in this process."""

    def __init__(self, app, contexts) -> None:
        self.app, self.contexts, self.replies, self.count = app, contexts, {}, 0

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def create_message(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            node = message.metadata.dst_node_id
            self.replies[str(self.count)] = self.app(message, self.contexts[node])
            yield str(self.count)

    def pull_messages(self, message_ids):
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(list(self.push_messages(messages)))


def measured(options, settings: dict | None, rounds: int, data, seed: int) -> float:
    torch.manual_seed(seed)
    channels, side = data.train_inputs.shape[1], data.train_inputs.shape[2]
    net = network(channels, side, options.norm)
    start = ArrayRecord(net.state_dict())
    inputs, labels = torch.as_tensor(data.train_inputs), torch.as_tensor(data.train_labels).long()
    app = ClientApp(mods=[] if settings is None else [SqsgdMod(simulation=Simulation(seed=seed))])

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=options.local_rate, momentum=0.9)
        own = torch.arange(context.node_id - 1, len(labels), NODES)
        for batch in own[torch.randperm(len(own))].split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(net(inputs[batch]), labels[batch]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(own)})
        return Message(
            RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg
        )

    contexts = {
        node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        for node in range(1, NODES + 1)
    }
    made: Strategy = FedAvg(fraction_evaluate=0.0)
    if settings is not None:
        made = SqsgdStrategy(seed=seed, **{"epsilon": 400.0, **settings})
    result = made.start(InProcess(app, contexts), start, num_rounds=rounds, train_config=ConfigRecord({}))
    net.load_state_dict(result.arrays.to_torch_state_dict())
    net.eval()
    with torch.no_grad():
        right = net(torch.as_tensor(data.test_inputs)).argmax(1) == data.test_labels
    return right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--rounds", type=int, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS)[:9])
    parser.add_argument("--local-rate", type=float, default=0.05)
    parser.add_argument("--norm", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    data = load_dataset(options.data)
    for name in options.settings:
        for rounds in options.rounds:
            found = [measured(options, SETTINGS[name], rounds, data, seed) for seed in options.seeds]
            shown = "  ".join(f"{100 * accuracy:5.1f} %" for accuracy in found)
            print(f"{name:>14} {rounds:4} rounds  {shown}", flush=True)


if __name__ == "__main__":
    main()
