"""Where the time of LeNet-5's gradient goes, and what was tried to shorten it; CPU time of one core.

    python benchmarks/gradients.py [repeats]

The variants take turns, so that a busy machine affects them alike.
Medians in milliseconds, batch of 32.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d, cross_entropy, max_pool2d, relu

from sqsgd.learning.gradients import loss_gradient, prepare_torch, trainable_parameters
from sqsgd.learning.models import LeNet5

CLIENTS, BATCH = 10, 32


def main() -> None:
    """Print a line per variant."""
    prepare_torch()
    torch.manual_seed(0)
    model = LeNet5(10, (1, 28, 28))
    parameters = trainable_parameters(model)
    images, labels = torch.randn(CLIENTS, BATCH, 1, 28, 28), torch.randint(10, (CLIENTS, BATCH))
    one, truth = images[0], labels[0]

    def gradient(scores: torch.Tensor) -> None:
        torch.autograd.grad(cross_entropy(scores, truth), parameters)

    def channels_first() -> None:
        hidden = relu(max_pool2d(conv2d(one, model.first.weight, model.first.bias), 2))
        gradient(model.head(relu(max_pool2d(model.second(hidden), 2)).flatten(1)))

    def unfolded() -> None:
        rows = one[:, 0].unfold(1, 5, 1).unfold(2, 5, 1).reshape(-1, 25)
        maps = torch.addmm(model.first.bias, rows, model.first.weight.view(-1, 25).t())
        hidden = relu(max_pool2d(maps.view(BATCH, 24, 24, -1).permute(0, 3, 1, 2), 2))
        gradient(model.head(relu(max_pool2d(model.second(hidden), 2)).flatten(1)))

    def halves() -> None:
        for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
            loss_gradient(model, one[part], truth[part])

    def half_precision() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(one)
        gradient(scores.float())

    weights = {name: value.detach() for name, value in model.named_parameters()}
    together = vmap(
        grad(lambda each, x, y: cross_entropy(functional_call(model, each, (x,)), y)), in_dims=(None, 0, 0)
    )
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    hidden = torch.randn(BATCH, 64, 12, 12).contiguous(memory_format=torch.channels_last).requires_grad_()
    maps = model.second(hidden)
    above, inputs = torch.randn_like(maps), (hidden, *model.second.parameters())
    variants: dict[str, tuple[int, Callable[[], object]]] = {
        "as it is: channels last": (1, lambda: loss_gradient(model, one, truth)),
        "channels first": (1, channels_first),
        "the first layer as a matrix product": (1, unfolded),
        "two halves, which fit the cache better": (1, halves),
        "bfloat16 (another result)": (1, half_precision),
        f"{CLIENTS} clients at once by vmap, per client": (
            CLIENTS,
            lambda: together(weights, images, labels),
        ),
        "second convolution, forward (0.21 GFLOP)": (1, lambda: model.second(hidden)),
        "second convolution, backward (0.42 GFLOP)": (
            1,
            lambda: torch.autograd.grad(maps, inputs, above, retain_graph=True),
        ),
        "a matrix product for scale (2.15 GFLOP)": (1, lambda: left @ right),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        for name, (clients, run) in variants.items():
            run()
            started = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - started) / clients)
    for name, taken in times.items():
        print(f"{name:45} {statistics.median(taken):6.1f}")


if __name__ == "__main__":
    main()
