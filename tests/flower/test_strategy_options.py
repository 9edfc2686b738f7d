"""Invalid options of the strategy, and invalid combinations of them."""

import numpy as np
import pytest
from federation import model, nodes_of, strategy
from flwr.app import Array, ArrayRecord

from sqsgd.flower import SqsgdStrategy
from sqsgd.schemes import SCHEMES

GOOD = {
    "sends": "delta", "downlink": "full", "optimizer": "adam", "once": False, "clients_per_round": 0,
    "min_answers": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sends": "gradient", "once": True, "clients_per_round": 5},
        {"downlink": "delta", "optimizer": "sgd", "clients_per_round": 5},
    ],
)
def test_what_goes_together(changes):
    SqsgdStrategy(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients_per_round": 4}, "min-answers = 5 is more than clients-per-round = 4"),
        ({"sends": "weights"}, "sends = 'weights' must be 'delta' or 'gradient'"),
        ({"decay": "slow"}, "decay = 'slow' must be one of auto, none, linear"),
        ({"optimizer": "sgdm"}, "optimizer = 'sgdm' must be one of sgd, momentum, adam"),
        ({"downlink": "none"}, "downlink = 'none' must be 'full' or 'delta'"),
        ({"downlink": "delta"}, "optimizer = 'adam': nodes would need the optimizer's state"),
        ({"once": True}, "once = true needs clients-per-round"),
        (
            {"once": True, "clients_per_round": 9, "downlink": "delta", "optimizer": "sgd"},
            "no node takes part again to use what changed",
        ),
    ],
)
def test_what_does_not_is_named_with_what_to_write_instead(changes, words):
    with pytest.raises(ValueError, match=words):
        SqsgdStrategy(**{**GOOD, **changes})


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_that_keep_a_residual_are_refused_with_once(name, tmp_path):
    made = SqsgdStrategy(scheme=name, epsilon=40.0, bytes=32, once=True, clients_per_round=3)
    arrays = ArrayRecord({"weights": Array(np.zeros(40960, np.float32))})
    if name in ("sqsgd", "sqsgd-paper", "dgc", "fedsel"):  # they make up later for what they leave out
        with pytest.raises(ValueError, match=f"scheme = '{name}' keeps a residual"):
            made.prepare(nodes_of(tmp_path), arrays, 3)
    else:
        made.prepare(nodes_of(tmp_path), arrays, 3)


@pytest.mark.parametrize(
    ("changes", "falls"),
    [
        ({"scheme": "sqsgd-stateless"}, True),
        ({"scheme": "sqsgd-stateless", "decay": "none"}, False),
        ({"options": {"code": "signs"}}, False),
        ({"options": {"code": "signs"}, "decay": "linear"}, True),
    ],
)
def test_the_rate_falls_unless_reports_hold_norms_or_as_it_is_told(changes, falls, tmp_path):
    made = strategy(**changes)
    made.start(nodes_of(tmp_path), model(), num_rounds=2)
    assert made.settings.decay_rounds == (2 if falls else 0)
