"""HOG features against a direct implementation, and the meaning of a direction."""

import math

import numpy as np
import pytest
import torch

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import extracted
from sqsgd.learning.hog import ORIENTATIONS, edges, hog, unit


def slow_hog(image):
    """One image, pixel by pixel: each gradient shared between the two nearest of eight directions."""
    wide = np.pad(image.astype(np.float64), 1)
    cells = np.zeros((8, 7, 7))
    for y in range(28):
        for x in range(28):
            across = wide[y + 1, x + 2] - wide[y + 1, x]
            down = wide[y + 2, x + 1] - wide[y, x + 1]
            place = (np.arctan2(down, across) / (2 * np.pi) * 8) % 8
            low, share = int(place) % 8, place % 1
            size = np.hypot(across, down)
            cells[low, y // 4, x // 4] += size * (1 - share)
            cells[(low + 1) % 8, y // 4, x // 4] += size * share
    root = np.sqrt(cells).reshape(-1)
    return root / np.linalg.norm(root)


def test_hog_is_the_histogram_written_out():
    images = load_dataset("mnist5k").train_inputs[:3]
    for image, row in zip(images, hog(images).flatten(1), strict=True):
        # Squares, because a root near zero magnifies what rounding leaves there.
        np.testing.assert_allclose(row.numpy() ** 2, slow_hog(image[0].numpy()) ** 2, atol=1e-6)


def test_hog_linear_has_the_parameters_it_is_known_for():
    assert hog(torch.rand(1, 1, 28, 28)).numel() * 10 == 3920


def test_soft_hog_leaves_the_common_mean_out():
    rows = extracted(load_dataset("mnist5k"), "soft-hog").train_inputs
    assert float(rows.mean(dim=1).abs().max()) < 1e-6


def test_a_blank_image_has_features_too():
    assert torch.isfinite(hog(torch.zeros(1, 1, 28, 28))).all()
    assert float(edges(torch.zeros(1, 1, 28, 28)).abs().max()) == 0


@pytest.mark.parametrize("direction", range(ORIENTATIONS))
def test_brightness_that_rises_one_way_is_all_in_one_direction(direction):
    """At every inner pixel; half way between two directions it is split equally."""
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    for turn, shares in ((0.0, {direction: 1.0}), (0.5, {direction: 0.5, (direction + 1) % 8: 0.5})):
        angle = (direction + turn) * 2 * math.pi / ORIENTATIONS
        slope = 0.1 * (math.cos(angle) * x + math.sin(angle) * y)
        found = edges(slope[None, None])[0, :, 1:-1, 1:-1]
        for number, strength in enumerate(found):
            # A step over two pixels is twice the slope.
            torch.testing.assert_close(
                strength, torch.full((10, 10), 0.2 * shares.get(number, 0.0)), atol=1e-5, rtol=0
            )


def test_a_row_of_zeros_is_left_as_it_is():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(unit(rows), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
