"""A problem with a known optimum: each client pulls the weights towards its own point."""

import numpy as np

from sqsgd.training import Settings, initial_state, run


class Quadratic:
    """Client s pulls the weights towards its own point; gradients are noisy, as batches are."""

    dim, clients = 40, 3

    def __init__(self):
        self.points = np.random.default_rng(1).standard_normal((self.clients, self.dim)).astype(np.float32)

    def gradient(self, weights, round, client):
        noise = np.random.default_rng((round, client)).standard_normal(self.dim)
        return (weights - self.points[client] + 0.1 * noise).astype(np.float32)

    def gradients(self, weights, round, cohort):
        for client in cohort:
            yield float(round), self.gradient(weights, round, client)

    def rows(self, weights, round, cohort):
        """Losses and gradients of many clients, for problems that offer them (``Rows``)."""
        gradients = [self.gradient(weights, round, client) for client in cohort.tolist()]
        return np.full(len(cohort), float(round)), np.stack(gradients)

    def cohort(self, round):
        return range(self.clients)


class Rows(Quadratic):
    """The same clients, for the engine to take many at once."""

    gradient_rows = Quadratic.rows


def settings(**changes):
    usual = {"epsilon": 50.0, "seed": 5, "lr": 0.1, "bound": 2.0, "decay": "none", "secure": False}
    return Settings(**{**usual, **changes})


def after(rounds, scheme, chosen, problem=None, **engine):
    problem = problem or Quadratic()
    state = initial_state(np.zeros(problem.dim, np.float32), chosen)
    steps = list(run(problem, scheme, chosen, state, rounds, **engine))
    return [record for record, _ in steps], steps[-1][1]
