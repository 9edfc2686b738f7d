"""Opacus at every silo under FedAvg, for comparison: DP-SGD steps, whole models sent, noise in floats.

Run: python benchmarks/opacus_fedavg.py --seed 0, and --dataset, --features for other data (needs opacus and
opt_einsum, which no extra installs).
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import extracted
from sqsgd.learning.models import make_model

CLIENTS = 10


def silo_update(model, data, rate, noise, clip, lr, steps, generator):
    """A silo's model after ``steps`` private steps from the global one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(data, batch_size=max(1, int(rate * len(data))), generator=generator)
    engine = PrivacyEngine(accountant="prv")
    private, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=clip,
        noise_generator=generator,
    )  # fmt: skip
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            if len(x):
                nn.functional.cross_entropy(private(x), y).backward()
                optimizer.step()
            done += 1
            if done == steps:
                break
    return private._module


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("seed", 0), ("rounds", 20), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("epsilon", 1.0), ("delta", 1e-5), ("rate", 0.05), ("clip", 0.3), ("lr", 60.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name, text in (("dataset", "mnist"), ("features", "soft-hog"), ("data-dir", "")):
        parser.add_argument(f"--{name}", default=text)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dataset = extracted(load_dataset(asked.dataset, asked.data_dir or None), asked.features)
    x, y = dataset.train_inputs.flatten(1).clone(), dataset.train_labels
    order = np.random.default_rng(asked.seed).permutation(len(y))
    parts = [TensorDataset(x[part], y[part]) for part in np.array_split(order, CLIENTS)]
    steps = asked.rounds * asked.steps
    noise = get_noise_multiplier(
        target_epsilon=asked.epsilon, target_delta=asked.delta, sample_rate=asked.rate, steps=steps,
        accountant="prv",
    )  # fmt: skip
    model = make_model("linear", in_shape=x.shape[1:], intercept=False)
    generator = torch.Generator().manual_seed(asked.seed)
    for round in range(asked.rounds):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        lr, updates = asked.lr * (1 - round / asked.rounds), []
        for part in parts:
            local = make_model("linear", in_shape=x.shape[1:], intercept=False)
            local.load_state_dict(state)
            local = silo_update(local, part, asked.rate, noise, asked.clip, lr, asked.steps, generator)
            updates.append(local.state_dict())
        model.load_state_dict({name: sum(update[name] for update in updates) / CLIENTS for name in state})
    with torch.no_grad():
        right = (model(dataset.test_inputs).argmax(1) == dataset.test_labels).float().mean().item()
    sent = 4 * sum(value.numel() for value in model.state_dict().values())
    print(json.dumps({**vars(asked), "noise": noise, "accuracy": right, "bytes_up": sent}))


if __name__ == "__main__":
    main()
