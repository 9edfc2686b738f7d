"""What a simulated node remembers in Flower's own memory."""

import pytest
from federation import node_context, request
from test_node_state import check_kept_as_it_was

from sqsgd.flower.context_state import ContextState
from sqsgd.node.policy import Policy, Refused


def state(max_epsilon, context=None):
    policy = Policy.of({"max-epsilon": max_epsilon}, simulation=True)
    return ContextState(context or node_context(5, None), policy)


def test_what_flower_keeps_comes_back_as_it_was():
    check_kept_as_it_was(state(1.0))


def test_a_simulated_node_has_a_cap_too():
    asked, context = request(), node_context(5, None)
    scheme = asked.make_scheme()
    for _ in range(2):
        state(400.0, context).pay(scheme, asked)
    with pytest.raises(Refused, match="epsilon 600 would be spent, above max-epsilon = 400"):
        state(400.0, context).pay(scheme, asked)
    state(600.0, context).pay(scheme, asked)  # what was refused was not counted
