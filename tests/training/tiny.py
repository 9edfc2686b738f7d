"""A dataset and a model small enough to train in a test."""

import numpy as np
import torch
from torch import nn


def data():
    """Four Gaussian clouds in eight dimensions."""
    numbers = np.random.default_rng(1)
    labels = np.arange(400) % 4
    centres = 3 * numbers.standard_normal((4, 8))
    return (centres[labels] + numbers.standard_normal((400, 8))).astype(np.float32), labels


def many():
    """Enough examples for ten thousand clients."""
    inputs, labels = data()
    return np.tile(inputs, (40, 1)), np.tile(labels, 40)


def model():
    torch.manual_seed(0)
    return nn.Linear(8, 4)


def batch_norm():
    return nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
