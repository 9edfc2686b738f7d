"""Histograms of oriented gradients: fixed features of an image."""

from __future__ import annotations

import math

import torch
from torch import nn

ORIENTATIONS = 8
CELL = 4
WIDTH = 1.7
"""Standard deviation of a soft cell in pixels. Tuned together with COMMON by benchmarks/one_report.py."""
COMMON = 0.7
"""The weight of the component that most images share: the marginals over positions and directions."""


def unit(rows: torch.Tensor) -> torch.Tensor:
    """Each row scaled to unit length."""
    shape = (-1, *[1] * (rows.ndim - 1))
    lengths = torch.linalg.vector_norm(rows.flatten(1), dim=1).clamp(min=1e-6)
    return rows.div(lengths.reshape(shape))


def edges(images: torch.Tensor) -> torch.Tensor:
    """The gradient at every pixel, split over eight directions."""
    grey = images.mean(dim=1, keepdim=True)
    wide = nn.functional.pad(grey, (1, 1, 1, 1))
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
    return unit(nn.functional.avg_pool2d(edges(images), CELL).sqrt())


def soft_hog(images: torch.Tensor) -> torch.Tensor:
    """HOG over soft, overlapping cells, with less of the component that all images share.

    The noise is isotropic, so a feature vector should spend its length on what separates the classes: soft
    cells change little when an image shifts, and the overall mean, which carries little information, is
    removed.
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
