"""Rendered digits that resemble handwriting, drawn from the shapes of fonts; images as MNIST centres them.

A glyph is kept as two distance fields: to its outline, and to its skeleton. A random threshold on the first
makes its strokes thicker or thinner; on the second it draws the skeleton with a pen. Needs SciPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import distance_transform_edt, gaussian_filter
from torch.nn.functional import avg_pool2d, grid_sample, interpolate

SIDE = 64
"""Side of a field in pixels; a glyph's longer side is 70 % of it."""
_DRAWN = 72
"""Side of a drawing before it is scaled into MNIST's box of 20 x 20."""
Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """For each digit of each font, the distance of pixels to the outline (< 0 inside) and to the skeleton.

    ``chances`` is how often a font is drawn, in any unit.
    """

    outline: torch.Tensor
    skeleton: torch.Tensor
    chances: torch.Tensor


def make_fields(glyphs: Pixels, chances: torch.Tensor) -> Fields:
    """Fields of glyphs given as (font, digit, row, column), 1 for ink."""
    shape = glyphs.shape
    ink = glyphs.reshape(-1, SIDE, SIDE) > 0.5
    thin = thinned(
        np.stack([gaussian_filter(one.astype(np.float32), 0.7) > 0.5 for one in ink]) | _cores(ink)
    )
    outline = [distance_transform_edt(~one) - distance_transform_edt(one) for one in ink]
    skeleton = [distance_transform_edt(~one) for one in thin]
    stacked = (
        torch.from_numpy(np.stack(part).astype(np.float32)).reshape(shape) for part in (outline, skeleton)
    )
    return Fields(outline=next(stacked), skeleton=next(stacked), chances=chances)


def draw(fields: Fields, labels: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
    """A new image of 28 x 28 in 0..1 for each label."""
    count = len(labels)

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, generator=numbers)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(count, *shape, generator=numbers)

    fonts = torch.multinomial(fields.chances, 2 * count, replacement=True, generator=numbers).reshape(
        2, count
    )
    shares = torch.where(uniform(0, 1) < 0.3, uniform(0, 0.5), torch.zeros(count))[:, None, None]
    mixed = torch.lerp(fields.outline[fonts[0], labels], fields.outline[fonts[1], labels], shares)
    penned = uniform(0, 1) < 0.6
    field = torch.where(penned[:, None, None], fields.skeleton[fonts[0], labels], mixed)[:, None]

    places = _places(normal, uniform)
    bent = grid_sample(field, places, padding_mode="border", align_corners=False)
    width = torch.where(penned, uniform(1.6, 4.5), uniform(-1.0, 2.0))
    uneven = 0.6 * interpolate(normal(1, 5, 5), size=(_DRAWN, _DRAWN), mode="bicubic")
    drawn = torch.sigmoid((width[:, None, None, None] + uneven - bent) / 0.4)
    return centred(drawn)


def centred(drawn: torch.Tensor) -> torch.Tensor:
    """Scaled into a box of 20 x 20 in its proportions, with the centre of mass in the middle of 28 x 28."""
    side = drawn.shape[-1]
    steps = (torch.arange(side) + 0.5) * 2 / side - 1
    rows, columns = drawn.amax(dim=(1, 3)) > 0.4, drawn.amax(dim=(1, 2)) > 0.4
    lengths = [
        torch.where(line, steps, -9).amax(dim=1) - torch.where(line, steps, 9).amin(dim=1) + 2 / side
        for line in (rows, columns)
    ]
    scale = (torch.maximum(*lengths) / 2).clamp(0.05, 1) * 28 / 20
    mass = drawn.sum(dim=(1, 2, 3)).clamp(min=1e-3)
    middle = torch.stack([(drawn.sum(dim=axis) * steps).sum(dim=(1, 2)) / mass for axis in (2, 3)], dim=1)
    pixels = (torch.arange(84) + 0.5) * 2 / 84 - 1
    y, x = torch.meshgrid(pixels, pixels, indexing="ij")
    places = torch.stack([x, y], dim=2) * scale[:, None, None, None] + middle[:, None, None, :]
    return (1.3 * avg_pool2d(grid_sample(drawn, places, align_corners=False), 3)).clamp(max=1)


def _places(normal, uniform) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Where the pixels of each drawing are in its field: a random affine map and a smooth displacement."""
    angle, slant = 0.15 * normal(), 0.25 * normal()
    tall, wide = torch.exp(0.12 * normal()), torch.exp(0.2 * normal())
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    maps = torch.stack(
        [wide * cos, slant * cos - sin * tall, zero, wide * sin, slant * sin + cos * tall, zero], dim=1
    ).reshape(-1, 2, 3)
    places = torch.nn.functional.affine_grid(maps, [len(maps), 1, _DRAWN, _DRAWN], align_corners=False)
    strength = uniform(0.3, 1.0)[:, None, None, None]
    for knots, size in ((4, 0.13), (7, 0.05)):
        bend = interpolate(normal(2, knots, knots), size=(_DRAWN, _DRAWN), mode="bicubic", align_corners=True)
        places = places + size * strength * bend.permute(0, 2, 3, 1)
    return places


def _cores(ink: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The ink that smoothing must not remove: strokes of one or two pixels."""
    return np.stack(
        [
            one & (distance_transform_edt(one) <= 1) & (gaussian_filter(one.astype(np.float32), 1.5) < 0.6)
            for one in ink
        ]
    )


def thinned(ink: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The skeletons of many images (Zhang and Suen 1984)."""
    ink = np.pad(ink, ((0, 0), (1, 1), (1, 1)))
    while True:
        before = int(ink.sum())
        for first in (True, False):
            n, ne, e, se, s, sw, w, nw = (
                np.roll(ink, (-dy, -dx), (1, 2))
                for dy, dx in ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
            )
            around = (n, ne, e, se, s, sw, w, nw)
            neighbours = sum(one.astype(np.int8) for one in around)
            rises = sum((~a & b).astype(np.int8) for a, b in zip(around, (*around[1:], n), strict=True))
            kept = (n & e & s) | (e & s & w) if first else (n & e & w) | (n & s & w)
            ink = ink & ~((neighbours >= 2) & (neighbours <= 6) & (rises == 1) & ~kept)
        if int(ink.sum()) == before:
            return ink[:, 1:-1, 1:-1]
