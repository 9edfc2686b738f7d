"""Federated logistic regression in NumPy: any gradient can be sent, without torch.

Two hundred clinics have 40 patients each. A report is 4 bytes of codes plus an envelope and costs epsilon 6.
Each clinic's own ledger keeps the total below a cap that no server can raise.

    python examples/logistic_regression.py [rounds]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import sqsgd
from sqsgd.privacy.ledger import BudgetSpent
from sqsgd.training import Settings, client_step, initial_state, server_step

CLINICS, PATIENTS, DIM, EPSILON, CAP = 200, 40, 20, 6.0, 60.0


def synthetic_patients():
    """Synthetic features and outcomes of every clinic, and of held-out people."""
    draw = np.random.default_rng(0)
    truth = draw.normal(0, 1.5, DIM)
    features = draw.normal(0, 1, (CLINICS + 50, PATIENTS, DIM)).astype(np.float32)
    outcomes = draw.random((CLINICS + 50, PATIENTS)) < 1 / (1 + np.exp(-features @ truth))
    held_out = features[CLINICS:].reshape(-1, DIM), outcomes[CLINICS:].ravel()
    return features[:CLINICS], outcomes[:CLINICS], held_out


def gradient(weights, features, outcomes):
    """The gradient of the mean logistic loss."""
    chance = 1 / (1 + np.exp(-features @ weights))
    return (features.T @ (chance - outcomes) / len(outcomes)).astype(np.float32)


def main(rounds):
    """Train until the rounds are over or the ledgers refuse; returns the held-out accuracy."""
    features, outcomes, (new_features, new_outcomes) = synthetic_patients()
    scheme = sqsgd.make_scheme("sqsgd-stateless", dim=DIM, epsilon=EPSILON, bytes=4)
    settings = Settings(epsilon=EPSILON, seed=1, lr=1.0, bound=1.0, secure=True)
    state = initial_state(np.zeros(DIM, np.float32), settings)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"clinic-{clinic}.ledger" for clinic in range(CLINICS)]
        ledgers = [sqsgd.Ledger.create(path, max_epsilon=CAP) for path in paths]
        try:
            for round in range(rounds):
                reports = []
                for clinic in range(CLINICS):
                    task = sqsgd.Task(round=round, client=clinic, seed=1, dim=DIM, bound=state.bound)
                    own = gradient(state.weights, features[clinic], outcomes[clinic])
                    ledgers[clinic].spend_for(scheme, task)  # before anything is sent; raises above the cap
                    message, _ = client_step(scheme, task, own, None, sqsgd.secure_rng())
                    reports.append((task, message, 1.0))
                state, _ = server_step(scheme, settings, state, reports)
        except BudgetSpent as refusal:
            print(f"round {round}: {str(refusal).split(' (')[0]}")
        spent = float(ledgers[0].spent)
    accuracy = float(np.mean((new_features @ state.weights > 0) == new_outcomes))
    print(
        f"{state.round} rounds of {scheme.bits // 8} bytes: accuracy {accuracy:.1%}, epsilon {spent:g} spent"
    )
    return accuracy


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
