"""The network that was trained on rendered digits: its file, its origin, and what it knows of handwriting."""

import hashlib
import json

import torch

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.font_digits import WEIGHTS, DigitNetwork, font_digits, font_head, network


def test_the_weights_are_small_and_their_origin_is_stated():
    about = json.loads(WEIGHTS.with_suffix(".json").read_text())
    assert about["sha256"] == hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert WEIGHTS.stat().st_size < 1_000_000
    assert "no handwritten digit" in about["data"]
    assert about["command"].startswith("python tools/font_digits.py")


def test_the_network_is_frozen_and_has_a_feature_row_of_unit_length():
    rows = font_digits(torch.rand(4, 1, 28, 28))
    assert rows.shape == (4, 64)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))
    assert not any(parameter.requires_grad for parameter in network().parameters())
    assert sum(parameter.numel() for parameter in DigitNetwork().parameters()) == sum(
        parameter.numel() for parameter in network().parameters()
    )


def test_brightness_and_contrast_do_not_matter():
    images = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(font_digits(3 * images - 1), font_digits(images), atol=1e-4, rtol=0)
    assert bool(font_digits(torch.zeros(1, 1, 28, 28)).isfinite().all())


def test_handwriting_is_recognised_without_having_been_seen():
    data = load_dataset("mnist5k")
    guesses = (font_digits(data.test_inputs) @ font_head().T).argmax(dim=1)
    assert float((guesses == data.test_labels).float().mean()) > 0.93
