"""The mean of a thousand people's vectors; no vector leaves its owner's machine unprotected."""

import numpy as np

import sqsgd

people, dim, epsilon = 1000, 64, 8.0
data = np.random.default_rng(0).normal(0.3, 1.0, (people, dim)).astype(np.float32)
bound = 10.0  # public, and chosen without looking at the data: longer vectors are clipped to it

scheme = sqsgd.make_scheme("privunit-index", dim=dim, epsilon=epsilon)
total = sqsgd.Aggregate(scheme)
for person, own in enumerate(data):
    task = sqsgd.Task(round=0, client=person, seed=1, dim=dim, bound=bound)
    message = scheme.encode(own, task, sqsgd.secure_rng())  # on the person's machine
    total.add(task, message)  # on the server, which sees only messages

error = np.linalg.norm(total.mean() - data.mean(axis=0)) / bound
print(f"{scheme.privacy.notion} epsilon {scheme.privacy.epsilon:g}, {len(message)} bytes per person")
print(f"error of the mean: {error:.3f} of the bound; predicted {(scheme.nmse / people) ** 0.5:.3f}")
