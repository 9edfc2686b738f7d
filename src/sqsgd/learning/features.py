"""Public feature extractors: fixed functions of one image, so that few weights are left to learn.

None of them looks at any data, so using one costs no privacy. Every row is scaled to unit length: a
softmax's gradient is then at most as long as its error, and noise of one size is the same for all images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import nn

from sqsgd.learning.datasets import Dataset
from sqsgd.learning.factories import call_factory, find_factory, is_factory_name, parameter_names
from sqsgd.learning.models import Shape

Extractor: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

ORIENTATIONS = 8
CELL = 4
WIDTH = 1.7
"""Deviation of a soft cell in pixels. Chosen with COMMON on Fashion-MNIST, as docs/one-report.md tells."""
COMMON = 0.7
"""What is left of the parts that most images have in common: where edges are, and how they run."""

_BATCH = 1000


def extracted(dataset: Dataset, name: str) -> Dataset:
    """The data set with features in place of its inputs, each row of unit length.

    ``package.module:factory`` names a function that returns a frozen ``torch.nn.Module`` or any function of
    a batch of inputs; it may take ``in_shape``.
    """
    extract = _extractor(name, dataset.in_shape)
    train, test = (_rows(name, extract, inputs) for inputs in (dataset.train_inputs, dataset.test_inputs))
    return replace(dataset, train_inputs=train, test_inputs=test)


def extractor_and_model(features: str, model: str) -> tuple[str, str]:
    """``hog-linear`` is short for features ``hog`` before the model ``linear``, and so for all of them.

    >>> extractor_and_model("", "hog-linear"), extractor_and_model("", "lenet5")
    (('hog', 'linear'), ('', 'lenet5'))
    """
    before, _, after = model.rpartition("-")
    if after == "linear" and before in FEATURES:
        if features:
            raise ValueError(
                f"features = {features!r}: model = {model!r} brings its own; write model = 'linear'"
            )
        return before, after
    return features, model


def _extractor(name: str, in_shape: Shape) -> Extractor:
    if is_factory_name(name):
        factory = find_factory(name, "features")
        offered = {"in_shape": in_shape} if "in_shape" in parameter_names(factory) else {}
        extract = call_factory(name, "features", factory, **offered)
        if not callable(extract):
            raise ValueError(
                f"features {name!r} returned a {type(extract).__name__}, not a function or module"
            )
        if isinstance(extract, nn.Module):
            extract.eval()
        return extract  # type: ignore[no-any-return]
    if name not in FEATURES:
        raise ValueError(
            f"features {name!r} are unknown; choose {', '.join(FEATURES)} or package.module:factory"
        )
    if len(in_shape) != 3 or in_shape[1] % CELL or in_shape[2] % CELL:
        raise ValueError(f"features {name!r} need images whose sides are multiples of {CELL}, not {in_shape}")
    return FEATURES[name]


def _rows(name: str, extract: Extractor, inputs: torch.Tensor) -> torch.Tensor:
    parts = []
    with torch.inference_mode():
        for start in range(0, len(inputs), _BATCH):
            batch = inputs[start : start + _BATCH]
            found = extract(batch)
            if not isinstance(found, torch.Tensor) or found.ndim < 2 or len(found) != len(batch):
                shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
                raise ValueError(
                    f"features {name!r} gave {shape} for {len(batch)} inputs; expected a row of numbers each"
                )
            parts.append(_unit(found.flatten(1).float()))
    rows = torch.cat(parts)
    if not bool(torch.isfinite(rows).all()):
        raise ValueError(f"features {name!r} gave NaN or infinity")
    return rows.clone()  # a tensor of inference mode cannot be trained on


def _unit(rows: torch.Tensor) -> torch.Tensor:
    shape = (-1, *[1] * (rows.ndim - 1))
    lengths = torch.linalg.vector_norm(rows.flatten(1), dim=1).clamp(min=1e-6)
    return rows.div(lengths.reshape(shape))


def edges(images: torch.Tensor) -> torch.Tensor:
    """How strongly the brightness rises towards each of eight directions, at every pixel."""
    grey = images.mean(dim=1, keepdim=True)
    wide = nn.functional.pad(grey, (1, 1, 1, 1))
    across = wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2]
    down = wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1]
    centres = torch.arange(ORIENTATIONS).reshape(1, -1, 1, 1) * (2 * math.pi / ORIENTATIONS)
    away = torch.remainder(torch.atan2(down, across) - centres + math.pi, 2 * math.pi) - math.pi
    share = (1 - away.abs() * (ORIENTATIONS / (2 * math.pi))).clamp(min=0)  # between the two nearest
    return torch.hypot(across, down) * share


def hog(images: torch.Tensor) -> torch.Tensor:
    """Orientation histograms (Dalal and Triggs 2005): 8 directions in cells of 4 x 4, square root.

    >>> hog(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 8, 7, 7])
    """
    return _unit(nn.functional.avg_pool2d(edges(images), CELL).sqrt())


def soft_hog(images: torch.Tensor) -> torch.Tensor:
    """The same over soft cells that overlap, with less of what all images have in common.

    Noise of equal size falls on every direction of feature space, so features do best whose length goes
    into what tells classes apart: soft cells move little when an image does, and the mean over all cells and
    directions, which says next to nothing, is taken out.
    """
    strength = edges(images)
    rows, columns = (_soft_cells(size) for size in strength.shape[2:])
    cells = _unit(torch.einsum("iy,noyx,jx->noij", rows, strength, columns).sqrt())
    whole = cells.mean(dim=(1, 2, 3), keepdim=True)
    place, direction = cells.mean(dim=1, keepdim=True), cells.mean(dim=(2, 3), keepdim=True)
    return cells - whole - (1 - COMMON) * (place + direction - 2 * whole)


def _soft_cells(size: int) -> torch.Tensor:
    """Weights of a line's pixels in each of its cells: bells around the cells' middles."""
    middles = torch.arange(size // CELL) * CELL + (CELL - 1) / 2
    bells = torch.exp(-0.5 * ((torch.arange(size) - middles[:, None]) / WIDTH) ** 2)
    return bells / bells.sum(dim=1, keepdim=True)


FEATURES: Mapping[str, Extractor] = {"hog": hog, "soft-hog": soft_hog}
