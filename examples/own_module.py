"""Train your own torch module from Python, as ``sqsgd train --model own_module:model`` does.

python examples/own_module.py [rounds]
"""

import sys

from torch import Tensor, nn

import sqsgd
from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.problem import make_problem
from sqsgd.training import Settings, initial_state, run
from sqsgd.training.rates import learning_rate


class Squeezed(nn.Module):
    """A small network for 28 x 28 images; uses GroupNorm, because BatchNorm averages clients' data."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2), nn.GroupNorm(4, 32), nn.ReLU(),
        )  # fmt: skip
        self.decide = nn.Linear(32 * 4 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.decide(self.features(images).flatten(1))


def model(classes: int) -> nn.Module:
    """The factory that ``--model own_module:model`` calls."""
    return Squeezed(classes)


def main(rounds: int) -> float:
    """Train on the embedded digits; returns the held-out accuracy."""
    data = load_dataset("mnist5k")
    problem = make_problem(
        data, model(data.classes), clients=10, partition_scheme="iid", batch=32, participants=None, seed=0,
        workers=1,
    )  # fmt: skip
    scheme = sqsgd.make_scheme("sqsgd", dim=problem.dim, epsilon=200.0, bytes=128)
    rate = learning_rate(scheme, problem.clients)
    settings = Settings(epsilon=200.0, seed=0, lr=rate, bound=scheme.first_bound, decay="none", secure=True)
    for record, state in run(problem, scheme, settings, initial_state(problem.initial(), settings), rounds):
        if state.round % 20 == 0 or state.round == rounds:
            accuracy, _ = problem.evaluate(state.weights)
            print(f"round {state.round}: accuracy {accuracy:.1%}, epsilon so far {record.epsilon_total:g}")
    print(f"{problem.dim:,} weights, {record.bytes_up} bytes per report, {scheme.privacy}")
    return accuracy


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
