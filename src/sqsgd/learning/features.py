"""Fixed features in place of a dataset's inputs, so that few weights are learned.

A feature extractor is a function of one input and is not fitted to any data, so it costs no privacy. Every
row is scaled to unit length, which bounds the gradient of a softmax and makes noise equally strong for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import nn

from sqsgd.checks import meant
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.factories import call_factory, find_factory, is_factory_name, parameter_names
from sqsgd.learning.hog import CELL, hog, soft_hog, unit

Extractor: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

FEATURES: Mapping[str, Extractor] = {"hog": hog, "soft-hog": soft_hog}
"""Each gives a row of numbers per image. A new row also adds the model ``<name>-linear``."""
_BATCH = 1000


def extracted(dataset: Dataset, name: str) -> Dataset:
    """The dataset with features in place of its inputs, each row of unit length.

    ``package.module:factory`` names a function that returns a frozen ``torch.nn.Module`` or another function
    of a batch of inputs; it may take ``in_shape``.
    """
    extract = _extractor(name, dataset.in_shape)
    train, test = (_rows(name, extract, inputs) for inputs in (dataset.train_inputs, dataset.test_inputs))
    return replace(dataset, train_inputs=train, test_inputs=test)


def extractor_and_model(features: str, model: str) -> tuple[str, str]:
    """``hog-linear`` is short for the model ``linear`` on features ``hog``, and so on for all features.

    >>> extractor_and_model("", "hog-linear"), extractor_and_model("", "lenet5")
    (('hog', 'linear'), ('', 'lenet5'))
    """
    before, _, after = model.rpartition("-")
    if after == "linear" and before in FEATURES:
        if features:
            raise ValueError(
                f"features = {features!r}: model = {model!r} already has features; use model = 'linear'"
            )
        return before, after
    return features, model


def _extractor(name: str, in_shape: tuple[int, ...]) -> Extractor:
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
            f"(choose {', '.join(FEATURES)} or package.module:factory)"
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
            parts.append(unit(found.flatten(1).float()))
        alone = unit(extract(inputs[:1]).flatten(1).float())
    rows = torch.cat(parts)
    if not bool(torch.isfinite(rows).all()):
        raise ValueError(f"features {name!r} gave NaN or infinity")
    if not torch.allclose(alone[0], rows[0], atol=1e-3):
        raise ValueError(
            f"features {name!r} of an image depend on the rest of the batch, which mixes users' data; "
            "remove batch norm and other batch statistics"
        )
    return rows.clone()  # tensors made in inference mode cannot be trained on
