"""Colours are readable and distinguishable, for colour-blind readers too."""

import itertools

import numpy as np
import pytest

from sqsgd.report.styles import DARK, LIGHT, series_style

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as seen without one type of cone.
SIGHT = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour):
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(TO_XYZ[1] @ linear(colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb):
    scaled = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_contrast_suffices_for_text_and_lines(theme):
    for ground in (theme.background, theme.surface):
        texts = (theme.ink, theme.muted, theme.accent, theme.warning)
        assert all(contrast(text, ground) >= 4.5 for text in texts)
        assert all(contrast(line, ground) >= 3 for line in theme.series)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_differ_for_the_colour_blind(theme, sight):
    seen = [lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in theme.series]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 12


def test_no_two_groups_are_drawn_alike():
    assert len({repr(series_style(series)) for series in range(168)}) == 168
    for series in range(20):
        one, next_one = series_style(series), series_style(series + 1)
        assert one.dash != next_one.dash
        assert one.marker != next_one.marker
