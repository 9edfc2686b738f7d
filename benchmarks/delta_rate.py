"""Which server rate suits apps that send the change of a trained model: examples/flower_app, in one process.

`.venv/bin/python benchmarks/delta_rate.py [--rounds 100 --clients 4 --local-rate .05]` prints the accuracy on
images that no client has, after 20, 50 and all rounds, for each rate, with signs and seeded noise.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples/flower_app"))
from digits_app.task import Net, load_data, load_test_data, test, train
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sqsgd import make_scheme, training
from sqsgd.core import Scheme
from sqsgd.training import Settings
from sqsgd.training.rates import learning_rate


class LocalTraining:
    """A problem whose "gradient" is the model before local training minus the model after it."""

    once = False

    def __init__(self, clients: int, local_rate: float, epochs: int) -> None:
        self.clients, self.local_rate, self.epochs = clients, local_rate, epochs
        self.net = Net()
        self.loaders = [load_data(client, clients, 32)[0] for client in range(clients)]

    @property
    def weights(self) -> np.ndarray:
        return parameters_to_vector(self.net.parameters()).detach().numpy().copy()

    @property
    def dim(self) -> int:
        return self.weights.size

    def put(self, weights: np.ndarray) -> None:
        vector_to_parameters(torch.from_numpy(weights.copy()), self.net.parameters())

    def gradients(self, weights, round, cohort):
        for client in cohort:
            self.put(weights)
            loss = train(self.net, self.loaders[client], self.epochs, self.local_rate)
            yield loss, weights - self.weights

    def cohort(self, round: int) -> range:
        return range(self.clients)


def signs(dim: int, options) -> Scheme:
    return make_scheme("sqsgd", dim=dim, epsilon=options.epsilon, bytes=options.bytes, code="signs")


def accuracies(options, rate: float, seed: int) -> dict[int, float]:
    torch.manual_seed(seed)
    problem = LocalTraining(options.clients, options.local_rate, options.epochs)
    scheme = signs(problem.dim, options)
    settings = Settings(epsilon=scheme.privacy.epsilon, seed=seed, lr=rate, bound=1.0, secure=False)
    state, found = training.initial_state(problem.weights, settings), {}
    for record, after in training.run(problem, scheme, settings, state, options.rounds):
        if record.round + 1 in (20, 50, options.rounds):
            problem.put(after.weights)
            found[record.round + 1] = test(problem.net, load_test_data())[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--local-rate", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=400.0)
    parser.add_argument("--bytes", type=int, default=256)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.125, 0.25, 0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    dim = sum(parameter.numel() for parameter in Net().parameters())
    scheme = signs(dim, options)
    print(f"default rate for gradients: {learning_rate(scheme, options.clients):.3f}", flush=True)
    for rate in options.rates:
        for seed in options.seeds:
            found = accuracies(options, rate, seed)
            shown = "  ".join(f"{rounds}: {100 * value:.1f} %" for rounds, value in found.items())
            print(f"rate {rate:<6g} seed {seed}  {shown}", flush=True)


if __name__ == "__main__":
    main()
