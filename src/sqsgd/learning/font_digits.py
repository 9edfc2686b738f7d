"""Features of digits from a small network that has seen rendered fonts only: public pretraining, end to end.

``tools/font_digits.py`` renders the digits of open fonts and trains the network on them alone; no handwritten
digit is involved, so its features cost no privacy. ``font_digits.json``, beside the weights, says how they
were made.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from sqsgd.learning.hog import unit

WEIGHTS = Path(__file__).with_name("font_digits.safetensors")
CLASSES, FEATURES = 10, 64
_CHUNK = 250  # what fits into a core's cache


class DigitNetwork(nn.Module):
    """Three convolutions and a linear layer to the features; ``head`` is a softmax on them at unit length."""

    def __init__(self, features: int = FEATURES, widths: tuple[int, int, int] = (24, 64, 96)) -> None:
        super().__init__()
        first, second, third = widths
        self.first = nn.Conv2d(1, first, 5, padding=2)
        self.second = nn.Conv2d(first, second, 3, padding=1)
        self.third = nn.Conv2d(second, third, 3, padding=1)
        self.features = nn.Linear(9 * third, features)
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
    return torch.cat([network()(part) for part in torch.split(scaled, _CHUNK)])


def font_head() -> torch.Tensor:
    """The weights of a softmax that classifies rendered digits by their features: a public start."""
    return network().head.weight.detach().clone()


@cache
def network() -> DigitNetwork:
    """The frozen network."""
    from safetensors.torch import load_file

    state = {name: value.float() for name, value in load_file(WEIGHTS).items()}
    made = DigitNetwork(len(state["features.weight"]))
    made.load_state_dict(state)
    return made.requires_grad_(False).eval()
