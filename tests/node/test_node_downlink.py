"""Updates: the smallest form is sent, and a node arrives at the server's weights or says so."""

import numpy as np
import pytest
from asking import DIM, ask, request

from sqsgd import make_scheme, seeded_rng, training
from sqsgd.node import reasons
from sqsgd.node.downlink import apply_update, changes_update, fields_size, reports_update, smallest_update
from sqsgd.training import Settings, State

SCHEME = make_scheme("sqsgd", dim=DIM, epsilon=200.0, bits=256)


def report():
    task = request().task
    return task, SCHEME.encode(np.ones(DIM, np.float32), task, seeded_rng(1)), 1.0


def test_the_smallest_form_is_sent():
    before, after = np.zeros(DIM, np.float32), np.zeros(DIM, np.float32)
    after[:2] = 1
    assert smallest_update(0.1, [report()], before, after)["kind"] == "changes"
    after[:200] = 1
    assert smallest_update(0.1, [report()], before, after)["kind"] == "reports"
    assert smallest_update(0.1, [report()] * 60, before, after) is None  # the model itself is smaller
    assert fields_size(reports_update(0.1, [report()])) < fields_size(changes_update(before, after))


def test_both_forms_lead_to_the_servers_weights():
    before = np.linspace(-1, 1, DIM, dtype=np.float32)
    settings = Settings(epsilon=50.0, seed=9, lr=0.1, track=False, secure=True)
    state = State(round=0, weights=before, bound=1.0, optimizer={})
    after = training.server_step(SCHEME, settings, state, [report()])[0].weights
    assert (after != before).any()
    for update in (reports_update(0.1, [report()]), changes_update(before, after)):
        found = apply_update(update, SCHEME, request(round=1, base=0), before)
        assert found.tobytes() == after.tobytes()


def test_an_update_of_a_model_that_the_node_does_not_have(tmp_path):
    nothing = changes_update(np.zeros(DIM, np.float32), np.zeros(DIM, np.float32))
    asked = request(round=1, base=0)
    assert ask(tmp_path, asked, update=nothing) == reasons.NEEDS_MODEL
    assert isinstance(ask(tmp_path, request()), bytes)  # does not keep the model
    assert ask(tmp_path, asked, update=nothing) == reasons.NEEDS_MODEL
    assert isinstance(ask(tmp_path, request(name="kept", keep=True)), bytes)
    assert isinstance(ask(tmp_path, request(name="kept", round=1, base=0), update=nothing), bytes)


@pytest.mark.parametrize("missing", ["model", "update"])
def test_a_request_must_bring_what_it_states(tmp_path, missing):
    if missing == "model":
        assert ask(tmp_path, request(), update={}) == reasons.MALFORMED
    else:
        assert isinstance(ask(tmp_path, request(keep=True)), bytes)
        assert ask(tmp_path, request(round=1, base=0), update={}) == reasons.MALFORMED
