"""Fixed features in place of a dataset's inputs, so that few weights are learned.

A feature extractor is a function of one input and is not fitted to the clients' data, so it costs no privacy.
Every row is scaled to unit length, which bounds the gradient of a softmax and makes noise equally strong for
all. Several extractors with weights make a mixture: their rows side by side, of unit length in total.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import nn

from sqsgd.checks import meant
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.efficientnet import (
    efficientnet_identity,
    efficientnet_lite0,
    efficientnet_rows,
    efficientnet_values,
)
from sqsgd.learning.factories import call_factory, find_factory, is_factory_name, one_line, parameter_names
from sqsgd.learning.font_digits import font_digits, font_head
from sqsgd.learning.hog import CELL, hog, soft_hog, unit
from sqsgd.learning.slow_features import kept

Extractor: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Shape: TypeAlias = tuple[int, ...]

FEATURES: Mapping[str, Extractor] = {
    "hog": hog,
    "soft-hog": soft_hog,
    "font-digits": font_digits,
    "efficientnet-lite0": efficientnet_lite0,
}
"""Each gives a row of numbers per image."""
AS_MODELS = ("hog", "soft-hog")
"""Features for images of any size: there is also a model ``<name>-linear`` with them inside."""
HEADS: Mapping[str, Callable[[], torch.Tensor]] = {"font-digits": font_head}
"""Features with a softmax that was trained on public data; the model ``pretrained-linear`` starts from it."""
PRETRAINED = "pretrained-linear"
SLOW: Mapping[str, tuple[Callable[[], bytes], Extractor, Extractor]] = {
    "efficientnet-lite0": (efficientnet_identity, efficientnet_values, efficientnet_rows)
}
"""Networks whose values are kept on disk: its identity, the network, and features from its values."""
_BATCH = 1000


def _in_cells(_: int, height: int, width: int) -> bool:
    return height % CELL == 0 and width % CELL == 0


_SHAPES: Mapping[str, tuple[str, Callable[[int, int, int], bool]]] = {
    "hog": (f"images whose sides are multiples of {CELL}", _in_cells),
    "soft-hog": (f"images whose sides are multiples of {CELL}", _in_cells),
    "font-digits": ("grey images of 28 x 28", lambda *shape: shape == (1, 28, 28)),
    "efficientnet-lite0": ("colour images with three channels", lambda *shape: shape[0] == 3),
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One extractor of a mixture, by its name, and its weight."""

    name: str
    weight: float


def extracted(dataset: Dataset, name: str) -> Dataset:
    """The dataset with features in place of its inputs, each row of unit length.

    ``soft-hog:0.7+font-digits:0.7`` is a mixture with weights. ``package.module:factory`` names a function
    that returns a frozen ``torch.nn.Module`` or another function of a batch of inputs; it may take
    ``in_shape``.
    """
    parts = mixture(name)
    scale = math.hypot(*(part.weight for part in parts))
    train: list[torch.Tensor] = []
    test: list[torch.Tensor] = []
    heads: list[torch.Tensor] = []
    for part in parts:
        extract, share = _extractor(part.name, dataset.in_shape), part.weight / scale
        for inputs, found in ((dataset.train_inputs, train), (dataset.test_inputs, test)):
            found.append(share * _rows(part.name, extract, inputs))
        public = (
            HEADS[part.name]() / share
            if part.name in HEADS
            else torch.zeros(dataset.classes, train[-1].shape[1])
        )
        heads.append(public)
    known = any(part.name in HEADS for part in parts) and all(len(one) == dataset.classes for one in heads)
    return replace(
        dataset,
        train_inputs=torch.cat(train, dim=1),
        test_inputs=torch.cat(test, dim=1),
        head=torch.cat(heads, dim=1) if known else None,
    )


def mixture(name: str) -> tuple[Part, ...]:
    """The parts of a mixture; a single extractor is a mixture of one.

    >>> [(part.name, part.weight) for part in mixture("soft-hog:0.7+my_code:make:2+hog")]
    [('soft-hog', 0.7), ('my_code:make', 2.0), ('hog', 1.0)]
    """
    parts = []
    for text in name.split("+"):
        before, _, after = text.strip().rpartition(":")
        weight = _number(after) if before else None
        parts.append(Part(name=text.strip() if weight is None else before, weight=weight or 1.0))
        if weight is not None and not 0 < weight < math.inf:
            raise ValueError(f"features {name!r}: the weight of {before!r} is {after}; expected more than 0")
    repeated = [one.name for one, other in itertools.combinations(parts, 2) if one.name == other.name]
    if repeated:
        raise ValueError(f"features {name!r}: {repeated[0]!r} occurs twice")
    return tuple(parts)


def extractor_and_model(features: str, model: str) -> tuple[str, str]:
    """``hog-linear`` is short for the model ``linear`` on features ``hog``, and so on for ``AS_MODELS``.

    >>> extractor_and_model("", "hog-linear"), extractor_and_model("", "lenet5")
    (('hog', 'linear'), ('', 'lenet5'))
    """
    before, _, after = model.rpartition("-")
    if after == "linear" and before in AS_MODELS:
        if features:
            raise ValueError(
                f"features = {features!r}: model = {model!r} already has features; use model = 'linear'"
            )
        return before, after
    return features, model


def _extractor(name: str, in_shape: Shape) -> Extractor:
    if is_factory_name(name):
        factory = find_factory(name, "features")
        offered = {"in_shape": in_shape} if "in_shape" in parameter_names(factory) else {}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # random filters must be the same every time
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
            f"features {name!r} are unknown{meant(name, FEATURES)} "
            f"(choose {', '.join(FEATURES)}, package.module:factory or a mixture such as "
            "soft-hog:0.7+font-digits:0.7)"
        )
    needed, fits = _SHAPES[name]
    if len(in_shape) != 3 or not fits(*in_shape):
        raise ValueError(f"features {name!r} need {needed}, not {in_shape}")
    return FEATURES[name]


def _rows(name: str, extract: Extractor, inputs: torch.Tensor) -> torch.Tensor:
    if name in SLOW:
        identity, network, extract = SLOW[name]
        inputs = kept(name, identity(), network, inputs)
    parts = []
    with torch.inference_mode():
        for start in range(0, len(inputs), _BATCH):
            batch = inputs[start : start + _BATCH]
            found = _extracted(name, extract, batch)
            if not isinstance(found, torch.Tensor) or found.ndim < 2 or len(found) != len(batch):
                shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
                raise ValueError(
                    f"features {name!r} gave {shape} for {len(batch)} inputs; expected a row of numbers each"
                )
            parts.append(unit(found.flatten(1).float()))
        alone = unit(_extracted(name, extract, inputs[:1]).flatten(1).float())
    rows = torch.cat(parts)
    if not bool(torch.isfinite(rows).all()):
        raise ValueError(f"features {name!r} gave NaN or infinity")
    if not torch.allclose(alone[0], rows[0], atol=1e-3):
        raise ValueError(
            f"features {name!r} of an image depend on the rest of the batch, which mixes users' data; "
            "remove batch norm and other batch statistics"
        )
    return rows.clone()  # tensors made in inference mode cannot be trained on


def _extracted(name: str, extract: Extractor, inputs: torch.Tensor) -> torch.Tensor:
    try:
        return extract(inputs)
    except Exception as error:
        shape = tuple(inputs.shape)
        raise ValueError(
            f"features {name!r} failed for inputs of shape {shape}: {one_line(error)}"
        ) from error


def _number(text: str) -> float | None:
    """The number, or None for a name: ``nan`` may be a factory's."""
    try:
        return None if text[:1].isalpha() else float(text)
    except ValueError:
        return None
