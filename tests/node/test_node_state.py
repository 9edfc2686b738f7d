"""What a node remembers: on the disk before a report leaves, and never weaker than it was."""

import dataclasses

import numpy as np
import pytest
from federation import DIM, answer, model, node_context, payload_of, request

from sqsgd import Ledger
from sqsgd.files import durable
from sqsgd.flower import wire
from sqsgd.node.node_state import ContextState, FolderState, Kept
from sqsgd.node.policy import Refused


@pytest.mark.parametrize("failing", ["prepared", "put"])
def test_where_the_state_cannot_be_written_nothing_leaves(tmp_path, monkeypatch, failing):
    context = node_context(5, tmp_path)
    payload_of(answer(request(), context))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, failing, full)
    assert answer(request(round=1), context).error.reason == wire.FAILED
    monkeypatch.undo()
    paid = Ledger(tmp_path / "ledger").spent
    assert paid in (200, 400)
    later = answer(request(round=1), context)  # a round that was paid for is over; one that was not, is not
    assert (later.error.reason == wire.ANSWERED) if paid == 400 else payload_of(later)


def test_a_state_put_back_does_not_answer_twice(tmp_path):
    """Without the file of the training, the ledger alone still knows the round."""
    context = node_context(5, tmp_path)
    payload_of(answer(request(), context))
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()
    assert answer(request(), context).error.reason == wire.ANSWERED


def test_the_cap_cannot_be_raised_and_can_be_lowered(tmp_path):
    payload_of(answer(request(), node_context(5, tmp_path, max_epsilon=500)))
    payload_of(answer(request(round=1), node_context(5, tmp_path, max_epsilon=1e9)))
    assert Ledger(tmp_path / "ledger").max_epsilon == 500
    reply = answer(request(round=2), node_context(5, tmp_path, max_epsilon=1e9))
    assert reply.error.reason == wire.SPENT
    answer(request(round=3), node_context(5, tmp_path, max_epsilon=450))
    assert Ledger(tmp_path / "ledger").max_epsilon == 450


def test_a_lost_ledger_is_not_made_anew(tmp_path):
    context = node_context(5, tmp_path)
    payload_of(answer(request(), context))
    (tmp_path / "ledger").unlink()
    assert answer(request(round=1), context).error.reason == wire.LEDGER


def test_a_ledger_that_was_never_finished_is_made_anew(tmp_path):
    """A crash between the tip and the ledger: nothing had left, and the node is not lost for ever."""
    Ledger.create(tmp_path / "ledger", max_epsilon=1e6)
    (tmp_path / "ledger").unlink()
    payload_of(answer(request(), node_context(5, tmp_path)))
    assert len(Ledger(tmp_path / "ledger").entries) == 1


def test_files_of_a_node_are_its_own(tmp_path):
    folder = tmp_path / "state"
    payload_of(answer(request(), node_context(5, folder)))
    assert folder.stat().st_mode & 0o077 == 0
    for path in [*folder.glob("*.jsonl"), *(folder / "tasks").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


def kept(**changes) -> Kept:
    values = {
        "name": "a training", "terms": {"scheme": "sqsgd", "options": {"levels": 4}}, "epsilon": 0.1 + 0.2,
        "round": 7, "identity": "ab" * 16, "payload": bytes(range(256)),
    }  # fmt: skip
    return Kept(**{**values, **changes})


@pytest.fixture(params=["folder", "context"])
def state(request, tmp_path):
    return FolderState(tmp_path) if request.param == "folder" else ContextState(node_context(5, None))


def test_what_is_kept_comes_back_as_it_was(state):
    arrays = model(0.25)
    arrays["steps"] = wire.Array(np.array(3, np.int64))  # a number that is no weight
    structure, weights = wire.take_apart(arrays)
    residual = np.linspace(-1, 1, DIM, dtype=np.float32)
    for each in (kept(), kept(name="another", residual=residual, model=(structure, weights))):
        assert state.read(each.name) is None
        state.write(each)
        back = state.read(each.name)
        plain = {field.name for field in dataclasses.fields(Kept)} - {"residual", "model"}
        assert all(getattr(back, name) == getattr(each, name) for name in plain)
        if each.residual is None:
            assert (back.residual, back.model) == (None, None)
            continue
        assert back.residual.tobytes() == residual.tobytes()
        assert back.model[1].tobytes() == weights.tobytes()
        assert list(back.model[0].record(weights)) == list(arrays)
        assert back.model[0].record(weights)["steps"].numpy() == 3


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_changed_byte_is_noticed_and_not_gone_on_with(tmp_path, place):
    state = FolderState(tmp_path)
    state.write(kept())
    (path,) = (tmp_path / "tasks").iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(Refused, match=r"is damaged: its checksum is wrong\. Delete it to go on"):
        state.read("a training")


def test_a_file_that_ends_early_is_damaged(tmp_path):
    for length in (0, 31, 32, 100):
        with pytest.raises(ValueError, match="checksum"):
            Kept.from_bytes(kept().to_bytes()[:length])


def test_a_simulated_node_has_a_cap_too():
    state, asked = ContextState(node_context(5, None)), request()
    scheme = asked.make_scheme()
    for _ in range(2):
        state.pay(scheme, asked, 400.0)
    with pytest.raises(Refused, match="epsilon 600 would be spent, above max-epsilon = 400"):
        state.pay(scheme, asked, 400.0)
    state.pay(scheme, asked, 600.0)  # what was refused was not counted
