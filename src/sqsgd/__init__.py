"""sqsgd: locally differentially private federated learning in a few bytes per round.

>>> import numpy as np, sqsgd
>>> scheme = sqsgd.make_scheme("sqsgd", dim=1000, epsilon=200.0, bytes=128)
>>> task = sqsgd.Task(round=0, client=3, seed=1234, dim=1000, bound=10.0)
>>> message = scheme.encode(np.ones(1000, np.float32), task, sqsgd.secure_rng())
>>> len(message), scheme.decode(message, task).shape
(51, (1000,))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sqsgd.core import Aggregate, Mechanism, Privacy, Scheme, Transform
from sqsgd.core.codec import MalformedReport
from sqsgd.core.random import Rng, secure_rng, seeded_rng
from sqsgd.core.records import RecordSum
from sqsgd.core.task import Task
from sqsgd.federation.collect.device import Device
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.privacy.certificate import (
    CentralGuarantee,
    Pass,
    central_guarantee,
    composed_guarantee,
    local_epsilon_for,
)
from sqsgd.privacy.ledger import Ledger
from sqsgd.privacy.planner import Plan, plan
from sqsgd.privacy.reconstruction import reconstruction_bound
from sqsgd.runs.train import TrainedRun, run, train
from sqsgd.schemes import SCHEMES, make_scheme
from sqsgd.training.settings import RunConfig

if TYPE_CHECKING:
    from sqsgd.learning.records import record_sum
    from sqsgd.runs.estimators import PrivateClassifier, PrivateRegressor

__version__ = "0.1.0"

__all__ = [
    "SCHEMES",
    "Aggregate",
    "CentralGuarantee",
    "Device",
    "Ledger",
    "MalformedReport",
    "Mechanism",
    "Pass",
    "Plan",
    "PrivQuant",
    "Privacy",
    "PrivateClassifier",
    "PrivateRegressor",
    "RecordSum",
    "Rng",
    "RunConfig",
    "ScalarDP",
    "Scheme",
    "Task",
    "TrainedRun",
    "Transform",
    "central_guarantee",
    "composed_guarantee",
    "local_epsilon_for",
    "make_scheme",
    "plan",
    "reconstruction_bound",
    "record_sum",
    "run",
    "secure_rng",
    "seeded_rng",
    "train",
]


_LATER = {
    "record_sum": "sqsgd.learning.records",
    "PrivateClassifier": "sqsgd.runs.estimators",
    "PrivateRegressor": "sqsgd.runs.estimators",
}
"""These load torch or scikit-learn, so they are imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
