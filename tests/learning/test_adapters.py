"""A frozen network with a small trained part: only that part is reported, saved and loaded again."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sqsgd
from sqsgd.learning.gradients import frozen_checksum, load_trained, parameter_count, trained_state

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(0, 3, 240)
INPUTS = DRAW.normal(LABELS[:, None], 0.4, (240, 6)).astype(np.float32)


class LoRA(nn.Module):
    """A frozen linear layer and a trained product of two narrow ones."""

    def __init__(self, frozen, rank=2):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x):
        return self.frozen(x) + x @ self.down.T @ self.up.T


def adapted(seed=1):
    """A frozen part with running statistics, an adapter of it and a trained head."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(8)
    norm(torch.randn(50, 8))
    frozen = norm.requires_grad_(False).eval()
    return nn.Sequential(LoRA(nn.Linear(6, 8)), frozen, nn.ReLU(), nn.Linear(8, 3))


def frozen_values(model):
    trained = trained_state(model)
    return {name: value.clone() for name, value in model.state_dict().items() if name not in trained}


SCHEMES = {
    "per client": {"epsilon": 400.0, "bytes": 100},
    "per record": {"scheme": "sqsgd-record", "epsilon": 8.0, "delta": 1e-4},
    "own steps": {"epsilon": 400.0, "bytes": 100, "local_epochs": 1, "local_lr": 0.1},
}


@pytest.mark.parametrize("kind", SCHEMES)
def test_only_the_trained_part_is_reported_changes_and_is_saved(tmp_path, kind):
    model = adapted()
    before, about = frozen_values(model), {"clients": 4, "rounds": 8, "report": False, **SCHEMES[kind]}
    run = sqsgd.train(dataset=(INPUTS, LABELS), model=model, out=tmp_path / "run", **about)
    after = frozen_values(run.model)
    assert len(before) == len(after) == 7  # weight and bias twice, and three statistics
    assert all(torch.equal(after[name], before[name]) for name in before)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert list(saved) == sorted(trained_state(model)) == ["0.down", "0.up", "3.bias", "3.weight"]
    assert sum(value.numel() for value in saved.values()) == parameter_count(model) == 12 + 16 + 27
    fresh = adapted()
    load_trained(fresh, saved)
    assert torch.equal(fresh(torch.from_numpy(INPUTS)), run.model(torch.from_numpy(INPUTS)))
    assert not torch.equal(fresh[0].up, model[0].up)
    for wrong in ({**saved, "1.weight": torch.ones(8)}, {**saved, "0.up": torch.ones(8, 1)}, {}):
        with pytest.raises(ValueError, match="not the weights that the model trains: "):
            load_trained(fresh, wrong)


def test_another_frozen_part_is_not_trained_on(tmp_path):
    about = {"dataset": (INPUTS, LABELS), "out": tmp_path / "run"}
    rounds = sqsgd.run(model=adapted(), clients=4, rounds=6, **SCHEMES["per client"], **about, report=False)
    next(iter(rounds))
    with pytest.raises(ValueError, match="has frozen weights that are others than this run began with"):
        sqsgd.run(model=adapted(seed=2), resume=True, **about)
    assert len(sqsgd.run(model=adapted(), resume=True, **about)) < 6


def test_the_checksum_is_of_what_is_frozen_alone():
    model, tied = adapted(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    for each, frozen in ((model, model[1].running_mean), (tied, tied[0].bias.requires_grad_(False))):
        before = frozen_checksum(each)
        load_trained(each, {name: value + 1 for name, value in trained_state(each).items()})
        assert frozen_checksum(each) == before
        frozen.detach()[0] += 1
        assert frozen_checksum(each) != before


def test_frozen_statistics_are_used_and_others_refused():
    model, batch = adapted(), (torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    assert sqsgd.record_sum(model, "cross-entropy", batch, 1.0).dim == parameter_count(model)
    model[1].train()
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm1d\) mixes the records"):
        sqsgd.record_sum(model, "cross-entropy", batch, 1.0)
    with pytest.raises(ValueError, match=r"keeps running statistics .* call \.eval\(\) on a frozen part"):
        sqsgd.train(dataset=(INPUTS, LABELS), model=model, epsilon=8.0)
