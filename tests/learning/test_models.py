"""The models: exact sizes, seeds, per-image independence, training, and errors for a user's own."""

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd.learning.gradients import get_flat, parameter_count
from sqsgd.learning.models import MODELS, make_model

COUNTS = {
    "lenet5": 119_850, "resnet110": 1_722_224, "resnet20": 270_704, "mlp": 199_210,
    "linear": 7850, "tanh-cnn": 26_010,
}  # fmt: skip
"""The parameters of every model of images."""
assert set(COUNTS) == set(MODELS) - {"gru"}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_are_exact_and_other_shapes_fit(name):
    model = make_model(name)
    assert (parameter_count(model), list(model.buffers())) == (COUNTS[name], [])
    assert make_model(name, classes=3, in_shape=(2, 20, 24))(torch.zeros(1, 2, 20, 24)).shape == (1, 3)
    # Scores of an image do not depend on its neighbours.
    if name.endswith("linear"):  # begins at zero
        torch.nn.init.normal_(model[-1].weight)
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    together = model(images)
    alone = torch.cat([model(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-4)
    assert together.std(dim=0).max() > 1e-3  # and they do depend on the image


def test_resnet110_is_54_pre_activated_blocks_written_out():
    model = make_model("resnet110", seed=3)
    weights = iter(model.parameters())
    images = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def activate(features: torch.Tensor) -> torch.Tensor:
        grouped = features.unflatten(1, (-1, 8))  # each image, in groups of eight channels
        mean = grouped.mean(dim=(2, 3, 4), keepdim=True)
        variance = grouped.var(dim=(2, 3, 4), keepdim=True, unbiased=False)
        return torch.relu((grouped - mean) / torch.sqrt(variance + 1e-5)).flatten(1, 2)

    conv = nn.functional.conv2d
    features = conv(images, next(weights), padding=1)
    for block in range(54):
        stride = 2 if block in (18, 36) else 1
        branch = conv(activate(features), next(weights), stride=stride, padding=1)
        branch = conv(activate(branch), next(weights), padding=1)
        if stride == 2:
            features = conv(features, next(weights), next(weights), stride=2)
        features = features + branch
    scores = activate(features).mean(dim=(2, 3)) @ next(weights).T
    assert next(weights, None) is None
    assert torch.allclose(model(images), scores, atol=1e-4)


@pytest.mark.parametrize("given", [None, lambda: nn.Linear(3, 2)])
def test_the_seed_decides_alone_and_the_global_generator_is_left_alone(given):
    before = torch.random.get_rng_state()
    first = get_flat(make_model("tanh-cnn", seed=5, given=given))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = (get_flat(make_model("tanh-cnn", seed=seed, given=given)) for seed in (5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_gru_is_torchs_own_with_one_bias():
    model = make_model("gru", classes=65, in_shape=(9,), seed=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == 20_817
    nn.init.normal_(model.given.bias)
    tokens = torch.randint(0, 65, (4, 9), generator=torch.Generator().manual_seed(1))
    cells = nn.GRU(16, 64, batch_first=True)
    order = torch.cat([torch.arange(64, 128), torch.arange(64), torch.arange(128, 192)])  # reset comes first
    with torch.no_grad():
        cells.weight_ih_l0.copy_(model.given.weight[order])
        cells.weight_hh_l0.copy_(model.recurrent.weight[order])
        cells.bias_ih_l0.copy_(model.given.bias[order])
        cells.bias_hh_l0.zero_()
    expected = model.head(cells(model.embedding(tokens))[0])
    assert expected.shape == (4, 9, 65)
    assert torch.allclose(model(tokens), expected, atol=1e-5)


def test_a_module_or_a_function_can_be_given():
    given = nn.Linear(3, 2)
    copied = make_model("in-memory", 2, (3,), given=given)
    assert copied is not given
    assert torch.equal(copied.weight, given.weight)
    made = make_model("in-memory", 2, (3,), given=lambda in_shape, classes: nn.Linear(*in_shape, 5 + classes))
    assert made.weight.shape == (7, 3)
    no_statistics = nn.BatchNorm2d(4, track_running_stats=False)
    make_model("in-memory", given=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), no_statistics))


class WithMore(nn.Linear):
    """Saves what is not a tensor."""

    def get_extra_state(self):
        return {"steps": 1}


def waves():
    model = nn.Linear(3, 2)
    model.register_buffer("waves", torch.ones(3, dtype=torch.complex64))
    return model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: 7, "returned a int, not a torch.nn.Module"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "has no trainable parameter"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), r"'1' \(BatchNorm1d\) keeps running"),
        (lambda: nn.Linear(2, 2).double(), "torch.float64 parameters; call .float"),
        (lambda: nn.LazyLinear(3), "has lazy layers"),
        (WithMore(3, 2), r"'_extra_state' in its state_dict is a dict, .*get_extra_state"),
        (waves(), r"'waves' in its state_dict is a torch\.complex64, which no file can hold"),
    ],
)
def test_errors_name_what_is_wrong_with_a_users_model(given, message):
    with pytest.raises(ValueError, match=message):
        make_model("mine", 2, (3,), given=given)
