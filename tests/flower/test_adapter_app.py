"""An app whose model is frozen but for an adapter needs nothing special: it sends what it trains."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
import torch
from federation import Nodes, node_context, strategy
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from torch import nn

from sqsgd.federation.flower import SqsgdMod
from sqsgd.learning.gradients import load_trained, trained_state


def network():
    torch.manual_seed(1)
    frozen = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).requires_grad_(False).eval()
    return nn.Sequential(frozen, nn.ReLU(), nn.Linear(8, 2))


def test_only_the_trained_part_passes_the_wire_and_is_saved(tmp_path):
    app, seen = ClientApp(mods=[SqsgdMod()]), []

    @app.train()
    def train(msg, context):
        model = network()
        load_trained(model, msg.content["arrays"].to_torch_state_dict())
        inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(context.node_id % 100))
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
        nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).backward()
        optimizer.step()
        seen.append({name: value for name, value in model.state_dict().items() if name.startswith("0")})
        return Message(RecordDict({"arrays": ArrayRecord(trained_state(model))}), reply_to=msg)

    nodes = Nodes(app, [node_context(i, tmp_path / str(i)) for i in (5, 6, 7)])
    made = strategy(sends="delta", bytes=16, out=tmp_path / "run", options={}, scheme="sqsgd-stateless")
    start = trained_state(network())
    made.start(grid=nodes, initial_arrays=ArrayRecord(start), num_rounds=2)
    assert [list(sent.content["arrays"]) for sent in nodes.sent] == [["2.weight", "2.bias"]] * 6
    frozen = network().state_dict()
    assert len(seen) == 6
    assert all(torch.equal(value, frozen[name]) for each in seen for name, value in each.items())
    saved, fresh = load_file(tmp_path / "run/model.safetensors"), network()
    load_trained(fresh, saved)
    assert sorted(saved) == ["2.bias", "2.weight"]
    assert not np.array_equal(fresh[2].weight.detach(), start["2.weight"])
