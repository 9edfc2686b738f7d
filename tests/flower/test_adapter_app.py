"""An app whose model is frozen but for an adapter needs nothing special: it sends what it trains."""

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
import torch
from federation import Nodes, node_context, strategy
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from torch import nn

from sqsgd.federation.flower import ClientApp as OurApp
from sqsgd.federation.flower import SqsgdMod, SqsgdStrategy, record_report
from sqsgd.learning.gradients import load_trained, trained_state

TRAINED = {"head": ["head.weight", "head.bias"], "prompt": ["prompt"], "lora": ["middle.down", "middle.up"]}


class LoRA(nn.Linear):
    """A frozen layer with a trained product of two narrow ones."""

    def __init__(self):
        super().__init__(6, 6)
        self.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


class Reader(nn.Module):
    """The class of a text of ten letters: frozen but for a head, two rows before the text, or LoRA."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(1)
        self.letters, self.head = nn.Embedding(10, 6), nn.Linear(6, 2)
        self.prompt, self.norm = nn.Parameter(torch.randn(2, 6)), nn.BatchNorm1d(6).eval()
        self.middle = nn.Linear(6, 6)
        self.requires_grad_(False)
        if kind == "lora":
            self.middle = LoRA()
        else:
            getattr(self, kind).requires_grad_(True)

    def forward(self, tokens):
        rows = torch.cat([self.prompt.expand(len(tokens), 2, 6), self.letters(tokens)], dim=1)
        return self.head(self.norm(torch.tanh(self.middle(rows)).mean(dim=1)))


def texts(node):
    drawn = torch.randint(10, (64, 7), generator=torch.Generator().manual_seed(node))
    return drawn, (drawn[:, 0] > 4).long()


def check_what_was_sent_and_saved(kind, nodes, run, frozen):
    """The trained part alone passed the wire and was saved, and it changed; the rest is as it was."""
    assert [list(sent.content["arrays"]) for sent in nodes.sent] == [TRAINED[kind]] * 6
    start, fresh = Reader(kind).state_dict(), Reader(kind)
    assert len(frozen) == 6
    assert all(torch.equal(value, start[name]) for each in frozen for name, value in each.items())
    saved = load_file(run / "model.safetensors")
    load_trained(fresh, saved)
    assert sorted(saved) == sorted(TRAINED[kind])
    assert any(not torch.equal(value, start[name]) for name, value in saved.items())


def rest(model):
    return {
        name: value.clone() for name, value in model.state_dict().items() if name not in trained_state(model)
    }


@pytest.mark.parametrize("kind", TRAINED)
def test_only_the_trained_part_passes_the_wire_and_is_saved(tmp_path, kind):
    app, frozen = ClientApp(mods=[SqsgdMod()]), []

    @app.train()
    def train(msg, context):
        model = Reader(kind)
        load_trained(model, msg.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
        inputs, labels = texts(context.node_id)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        frozen.append(rest(model))
        return Message(RecordDict({"arrays": ArrayRecord(trained_state(model))}), reply_to=msg)

    nodes = Nodes(app, [node_context(i, tmp_path / str(i)) for i in (5, 6, 7)])
    made = strategy(sends="delta", bytes=16, out=tmp_path / "run", options={}, scheme="sqsgd-stateless")
    made.start(grid=nodes, initial_arrays=ArrayRecord(trained_state(Reader(kind))), num_rounds=2)
    check_what_was_sent_and_saved(kind, nodes, tmp_path / "run", frozen)


@pytest.mark.parametrize("kind", TRAINED)
def test_so_it_is_per_record(tmp_path, kind):
    app, frozen = OurApp(), []

    @app.train()
    def train(msg, context):
        model = Reader(kind)
        reply = record_report(msg, model, "cross-entropy", *texts(context.node_id))
        frozen.append(rest(model))
        return reply

    owner = {"max_epsilon": None, "max_epsilon_per_record": 8.0, "delta": 1e-5}
    nodes = Nodes(app, [node_context(i, tmp_path / str(i), **owner) for i in (5, 6, 7)])
    asked = {"epsilon": 8.0, "delta": 1e-5, "records": 64, "sampling": 1.0, "seed": 1}
    made = SqsgdStrategy(unit="record", min_available_nodes=3, out=tmp_path / "run", **asked)
    made.start(nodes, ArrayRecord(trained_state(Reader(kind))), num_rounds=2)
    check_what_was_sent_and_saved(kind, nodes, tmp_path / "run", frozen)
