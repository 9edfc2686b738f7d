"""An app whose model is frozen but for an adapter needs nothing special: it sends what it trains."""

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
import torch
from federation import Nodes, node_context, strategy
from flwr.app import ArrayRecord, Message, RecordDict
from safetensors.torch import load_file
from torch import nn

from sqsgd.federation.flower import ClientApp, SqsgdStrategy, record_report
from sqsgd.learning.gradients import load_trained, trained_state


class Reader(nn.Module):
    """The class of a text of ten letters: frozen but for two rows before the text, and a LoRA."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.letters, self.middle, self.head = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6).eval()
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(2, 6))
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))

    def forward(self, tokens):
        rows = torch.cat([self.prompt.expand(len(tokens), 2, 6), self.letters(tokens)], dim=1)
        added = rows @ self.down.T @ self.up.T
        return self.head(self.norm(torch.tanh(self.middle(rows) + added).mean(dim=1)))


def texts(node):
    drawn = torch.randint(10, (64, 7), generator=torch.Generator().manual_seed(node))
    return drawn, (drawn[:, 0] > 4).long()


def a_step(msg, model, texts):
    load_trained(model, msg.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    nn.functional.cross_entropy(model(texts[0]), texts[1]).backward()
    optimizer.step()
    return Message(RecordDict({"arrays": ArrayRecord(trained_state(model))}), reply_to=msg)


def its_records(msg, model, texts):
    return record_report(msg, model, "cross-entropy", *texts)


CAP = {"max_epsilon": None, "max_epsilon_per_record": 8.0, "delta": 1e-5}
CLIENT = {"sends": "delta", "bytes": 16, "options": {}, "scheme": "sqsgd-stateless"}
RECORD = {"unit": "record", "epsilon": 8.0, "delta": 1e-5, "records": 64, "sampling": 1.0, "seed": 1}


@pytest.mark.parametrize(
    ("answer", "owner", "made"),
    [
        (a_step, {}, lambda out: strategy(**CLIENT, out=out)),
        (its_records, CAP, lambda out: SqsgdStrategy(**RECORD, min_available_nodes=3, out=out)),
    ],
)
def test_only_the_trained_part_passes_the_wire_and_is_saved(tmp_path, answer, owner, made):
    """It changes, and the rest is as it was."""
    app, frozen = ClientApp(), []

    @app.train()
    def train(msg, context):
        reply = answer(msg, model := Reader(), texts(context.node_id))
        own = trained_state(model)
        frozen.append({name: value for name, value in model.state_dict().items() if name not in own})
        return reply

    nodes = Nodes(app, [node_context(i, tmp_path / str(i), **owner) for i in (5, 6, 7)])
    made(tmp_path / "run").start(nodes, ArrayRecord(trained_state(Reader())), num_rounds=2)
    assert [list(sent.content["arrays"]) for sent in nodes.sent] == [["prompt", "down", "up"]] * 6
    start, fresh = Reader().state_dict(), Reader()
    assert len(frozen) == 6
    assert all(torch.equal(value, start[name]) for each in frozen for name, value in each.items())
    saved = load_file(tmp_path / "run/model.safetensors")
    load_trained(fresh, saved)
    assert sorted(saved) == ["down", "prompt", "up"]
    assert any(not torch.equal(value, start[name]) for name, value in saved.items())
