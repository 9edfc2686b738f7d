"""One batch tells whether a model fits, keeps what it saw, or draws."""

import pytest
import torch
from torch import nn

from sqsgd.learning.probe import draws_randomness

INPUTS, LABELS = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])


class Counting(nn.Module):
    """Keeps a running sum of what it saw."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.total += x.sum()
        return self.linear(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Counting(), "the model's buffer 'total' changes with each batch"),
        (nn.Linear(3, 2), "the model does not fit the data"),
        (nn.Linear(2, 1), "the model does not fit the data.*labels up to 1"),
        (nn.Embedding(100, 2), "the model does not fit the data.*torch.float32"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_anything_is_written(model, message):
    with pytest.raises(ValueError, match=message):
        draws_randomness(model, INPUTS, LABELS)


def test_a_buffer_that_stays_as_it_is_may_be_there():
    model = nn.Linear(2, 2)
    model.register_buffer("constant", torch.ones(3))
    assert not draws_randomness(model, INPUTS, LABELS)


def test_dropout_draws_and_a_line_does_not():
    line = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    assert not draws_randomness(line, INPUTS, LABELS)
    assert draws_randomness(nn.Sequential(*line[:2], nn.Dropout(), line[2]), INPUTS, LABELS)


def test_the_model_is_left_as_it_was():
    model = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws_randomness(model, INPUTS, LABELS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
