"""What a simulated node remembers in Flower's own memory."""

import pytest
from federation import node_context, request
from test_node_state import check_kept_as_it_was

from sqsgd.flower.context_state import ContextState
from sqsgd.node.policy import Refused


def test_what_flower_keeps_comes_back_as_it_was():
    check_kept_as_it_was(ContextState(node_context(5, None)))


def test_a_simulated_node_has_a_cap_too():
    state, asked = ContextState(node_context(5, None)), request()
    scheme = asked.make_scheme()
    for _ in range(2):
        state.pay(scheme, asked, 400.0)
    with pytest.raises(Refused, match="epsilon 600 would be spent, above max-epsilon = 400"):
        state.pay(scheme, asked, 400.0)
    state.pay(scheme, asked, 600.0)  # what was refused was not counted
