"""Settings that cannot be, alone or together."""

import pytest

from sqsgd import make_scheme
from sqsgd.flower.contradictions import check_needs_no_residual, check_together
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
    check_together(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients_per_round": 4}, "min-answers = 5 is more than clients-per-round = 4"),
        ({"sends": "weights"}, "sends = 'weights' must be 'delta' or 'gradient'"),
        ({"downlink": "none"}, "downlink = 'none' must be 'full' or 'delta'"),
        ({"downlink": "delta"}, "optimizer = 'adam': nodes would need the optimiser's state"),
        ({"once": True}, "once = true needs clients-per-round"),
        (
            {"once": True, "clients_per_round": 9, "downlink": "delta", "optimizer": "sgd"},
            "nobody comes back to use what changed",
        ),
    ],
)
def test_what_does_not_is_named_with_what_to_write_instead(changes, words):
    with pytest.raises(ValueError, match=words):
        check_together(**{**GOOD, **changes})


@pytest.mark.parametrize("name", SCHEMES)
def test_who_sends_once_keeps_nothing_for_later(name):
    scheme = make_scheme(name, dim=4096, epsilon=40.0, bits=256)
    if name in ("sqsgd", "sqsgd-paper", "dgc", "fedsel"):  # they make up later for what they leave out
        with pytest.raises(ValueError, match=f"scheme = '{name}' keeps a residual"):
            check_needs_no_residual(scheme)
    else:
        check_needs_no_residual(scheme)
