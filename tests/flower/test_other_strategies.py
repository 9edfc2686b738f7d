"""Options of Flower's other strategies are translated, or refused by the name of whose they are."""

import inspect

import flwr.serverapp.strategy as flowers
import pytest
from federation import model, nodes_of, strategy
from flwr.app import ConfigRecord

from sqsgd.flower import SqsgdStrategy
from sqsgd.flower.other_strategies import _REFUSED, translate
from sqsgd.training.optimizers import Optimizer

STRATEGIES = [
    found
    for name in flowers.__all__
    if inspect.isclass(found := getattr(flowers, name)) and name not in ("Result", "Strategy")
]


@pytest.mark.parametrize("theirs", STRATEGIES, ids=lambda each: each.__name__)
def test_no_option_of_any_strategy_is_unknown(theirs):
    """Each is taken with its own default, or refused with the name of a strategy that has it."""
    for name, each in inspect.signature(theirs).parameters.items():
        value = 1.0 if each.default is inspect.Parameter.empty else each.default
        whose = "differential privacy" if "Privacy" in theirs.__name__ else theirs.__name__
        if name in _REFUSED:
            with pytest.raises(TypeError, match=f"{name} is an option of .*{whose}"):
                SqsgdStrategy(**{name: value})
        else:
            SqsgdStrategy(**{name: value})


@pytest.mark.parametrize(
    ("given", "kind", "terms"),
    [
        (
            {"eta": 0.02, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2},
            "adam", {"momentum": 0.8, "second": 0.95, "floor": 1e-2},
        ),
        ({"eta": 0.5}, "adam", {"momentum": 0.9, "second": 0.99, "floor": 1e-3}),
        ({"server_momentum": 0.7}, "momentum", {"momentum": 0.7}),
        ({"server_momentum": 0.0}, "sgd", {}),
    ],
)  # fmt: skip
def test_the_servers_optimizer_has_their_terms(tmp_path, given, kind, terms):
    made = strategy(lr=None, **given)
    made.prepare(nodes_of(tmp_path), model(), 3)
    used = made.settings.optimizer
    rate = given.get("eta", used.rate)
    assert used == Optimizer(kind=kind, rate=rate, **terms)


def test_a_servers_rate_multiplies_the_default_and_momentum_adds_steps_up(tmp_path):
    def rate(**given):
        made = strategy(lr=None, **given)
        made.prepare(nodes_of(tmp_path), model(), 3)
        return made.settings.optimizer.rate

    assert rate(server_learning_rate=1.0) == rate()
    assert rate(server_learning_rate=0.25) == pytest.approx(rate() / 4)
    assert rate(server_momentum=0.75, server_learning_rate=2.0) == pytest.approx(rate() / 2)


def test_the_proximal_term_reaches_the_nodes(tmp_path):
    nodes = nodes_of(tmp_path)
    strategy(proximal_mu=0.25).start(nodes, model(), num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    for sent in nodes.sent:
        assert dict(sent.content["config"]) == {"lr": 0.1, "proximal-mu": 0.25, "server-round": 1}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_malicious_nodes": 1}, TypeError, "an option of Krum, MultiKrum and Bulyan"),
        ({"noise_multiplier": 1.0}, TypeError, r"use SqsgdStrategy\(epsilon=...\) without a wrapper"),
        ({"q": 0.1}, TypeError, "an option of QFedAvg"),
        ({"fraction_fit": 0.5}, TypeError, "earlier strategies: use fraction_train"),
        ({"beta_1": 1.0}, ValueError, "beta_1"),
        ({"server_momentum": -0.1}, ValueError, "server_momentum"),
        ({"proximal_mu": "x"}, ValueError, "proximal_mu"),
        ({"eta": 0.1, "server_momentum": 0.9}, ValueError, "server_momentum is an option of FedAvgM"),
        ({"eta": 0.1, "optimizer": "momentum"}, ValueError, "optimizer = 'momentum' with options of FedAdam"),
        ({"eta": 0.1, "lr": 0.1}, ValueError, "lr = 0.1 with options of FedAdam"),
        ({"server_learning_rate": 2.0, "lr": 0.1}, ValueError, "give one of them"),
        ({"server_momentum": 0.9, "downlink": "delta"}, ValueError, "nodes would need the optimizer's state"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_to_use(given, error, words):
    with pytest.raises(error, match=words):
        SqsgdStrategy(**given)


def test_the_clients_rate_is_ignored_as_flower_does(caplog):
    with caplog.at_level("WARNING", logger="flwr"):
        assert translate({"eta_l": 0.1}, "sgd", None).rest == {}
    assert "eta_l is ignored" in caplog.text
