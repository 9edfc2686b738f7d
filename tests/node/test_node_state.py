"""What a node remembers: on the disk before a report leaves, and never weaker than it was."""

import dataclasses
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from asking import DIM, ask, lines, request

from sqsgd import Ledger
from sqsgd._internal import files
from sqsgd.federation.node import policy
from sqsgd.federation.node.answer import MOST_TRAININGS, FolderState, Kept
from sqsgd.federation.node.policy import Refused


def answered(folder, **changes) -> bytes:
    config = {"max_epsilon": changes.pop("max_epsilon")} if "max_epsilon" in changes else {}
    payload = ask(folder, request(**changes), **config)
    assert isinstance(payload, bytes), payload
    return payload


@pytest.mark.parametrize("failing", ["prepared", "put"])
def test_where_the_state_cannot_be_written_nothing_leaves(tmp_path, monkeypatch, failing):
    answered(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, failing, full)
    assert ask(tmp_path, request(round=1)) == policy.FAILED
    monkeypatch.undo()
    paid = Ledger(tmp_path / "ledger").spent
    assert paid in (200, 400)
    later = ask(tmp_path, request(round=1))  # a round that was paid for is over; one that was not, is not
    assert (later == policy.ANSWERED) if paid == 400 else isinstance(later, bytes)


def test_a_state_put_back_does_not_answer_twice(tmp_path):
    """Without the file of the training, the ledger alone still knows the round."""
    answered(tmp_path)
    for path in (tmp_path / "tasks").iterdir():
        path.unlink()
    assert ask(tmp_path, request()) == policy.ANSWERED


def test_a_server_does_not_fill_the_disk(tmp_path):
    """A training whose state was dropped goes on, and answers no round twice."""
    for number in range(MOST_TRAININGS + 3):
        answered(tmp_path, name=f"training {number}")
        answered(tmp_path, name="a long one", round=number)
    assert len(list((tmp_path / "tasks").iterdir())) == MOST_TRAININGS
    assert ask(tmp_path, request(name="training 0")) == policy.ANSWERED
    answered(tmp_path, name="training 0", round=1)
    kept = FolderState(tmp_path).read("a long one")
    assert kept is not None
    assert kept.request.task.round == MOST_TRAININGS + 2


def test_the_cap_cannot_be_raised_and_can_be_lowered(tmp_path):
    answered(tmp_path, max_epsilon=500)
    answered(tmp_path, round=1, max_epsilon=1e9)
    assert Ledger(tmp_path / "ledger").max_epsilon == 500
    assert ask(tmp_path, request(round=2), max_epsilon=1e9) == policy.SPENT
    ledger = Ledger(tmp_path / "ledger")
    ledger.top_up(100)  # by the owner, while a node runs with the settings that it began with
    assert ask(tmp_path, request(round=3), max_epsilon=500) == policy.SPENT
    assert (ledger.max_epsilon, ledger.spent) == (600, 400)
    answered(tmp_path, round=4, max_epsilon=600)
    assert ask(tmp_path, request(round=5), max_epsilon=1e9) == policy.SPENT


def test_a_lost_ledger_is_not_created_again(tmp_path):
    answered(tmp_path)
    (tmp_path / "ledger").unlink()
    assert ask(tmp_path, request(round=1)) == policy.LEDGER


def test_a_ledger_that_was_never_finished_is_created_again(tmp_path):
    """A crash between the tip and the ledger: nothing had left, and the node still works."""
    Ledger.create(tmp_path / "ledger", max_epsilon=1e6)
    (tmp_path / "ledger").unlink()
    answered(tmp_path)
    assert len(Ledger(tmp_path / "ledger").entries) == 1


def check_vanished(folder, remains):
    """What ``folder`` held is gone, or its disk is not mounted: the node refuses."""
    Ledger.create(folder / "ledger", max_epsilon=1e6)
    assert isinstance(ask(folder, request(), require_ledger=True), bytes)
    shutil.rmtree(folder)
    if remains:
        folder.mkdir()
    calls = []
    told = ask(folder, request(round=1), require_ledger=True, compute=lambda *_: calls.append(1))
    assert (told, calls) == (policy.LEDGER, [])
    assert not (folder / "ledger").exists()
    (refusal,) = lines(folder / "refusals.jsonl")
    assert refusal["reason"].startswith(f"{folder}/ledger is missing, and require-ledger = true")


@pytest.mark.parametrize("remains", [True, False])
def test_a_folder_that_vanished_is_not_a_new_ledger(tmp_path, remains):
    (folder := tmp_path / "state").mkdir()
    check_vanished(folder, remains)


def check_rolled_back(folder, witness):
    """The whole folder, tip included, is replaced by an older copy of itself."""
    assert isinstance(ask(folder, request(), witness=str(witness)), bytes)
    shutil.copytree(folder, folder.with_name("copy"))
    for number in (1, 2):
        assert isinstance(ask(folder, request(round=number), witness=str(witness)), bytes)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    assert ask(folder, request(round=3), witness=str(witness)) == policy.LEDGER
    (refusal,) = lines(folder / "refusals.jsonl")
    assert f"{witness} records 4: an older copy was restored" in refusal["reason"]


def test_with_a_witness_an_older_copy_of_the_folder_is_refused(tmp_path):
    (tmp_path / "other disk").mkdir()
    check_rolled_back(tmp_path / "state", tmp_path / "other disk/tip")


@pytest.mark.parametrize(("check", "second"), [(check_vanished, True), (check_rolled_back, Path("/tip"))])
def test_a_node_as_it_was_before_is_found(tmp_path, monkeypatch, check, second):
    """One that opens or creates the ledger in its folder, and looks at nothing else."""

    def forgetful(self, owners):
        path = self.folder / "ledger"
        return Ledger(path) if path.exists() else Ledger.create(path, max_epsilon=owners.max_epsilon)

    monkeypatch.setattr(FolderState, "open_ledger", forgetful)
    (folder := tmp_path / "state").mkdir()
    with pytest.raises(AssertionError):
        check(folder, second)


def test_a_witness_outlives_the_folder(tmp_path):
    """Even a node that may create its ledger does not, where the witness knows of one."""
    folder, witness = tmp_path / "state", str(tmp_path / "tip")
    assert isinstance(ask(folder, request(), witness=witness), bytes)
    shutil.rmtree(folder)
    assert ask(folder, request(round=1), witness=witness) == policy.LEDGER


def test_a_witness_that_is_missing_is_not_made_up(tmp_path):
    answered(tmp_path / "state")
    for _ in range(2):
        assert ask(tmp_path / "state", request(round=1), witness=str(tmp_path / "tip")) == policy.LEDGER
    assert not (tmp_path / "tip").exists()


def test_files_of_a_node_are_its_own(tmp_path):
    folder = tmp_path / "state"
    answered(folder)
    assert folder.stat().st_mode & 0o077 == 0
    for path in [*folder.glob("*.jsonl"), *(folder / "tasks").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


def kept(residual=None, **changes) -> Kept:
    asked = request(round=7, epsilon=0.1 + 0.2, fingerprint=3, seed=2**64 - 1, **changes)
    return Kept(request=asked, payload=bytes(range(256)), residual=residual)


def check_kept_as_it_was(state):
    """What any state must do; tests/flower/test_mod.py uses it too."""
    residual = np.linspace(-1, 1, 2 * DIM, dtype=np.float32).reshape(2, DIM)
    for each in (kept(), kept(name="another", residual=residual)):
        assert state.read(each.request.name) is None
        state.write(each)
        back = state.read(each.request.name)
        np.testing.assert_array_equal(back.residual, each.residual)
        assert dataclasses.replace(back, residual=None) == dataclasses.replace(each, residual=None)


def test_what_is_kept_comes_back_as_it_was(tmp_path):
    check_kept_as_it_was(FolderState(tmp_path))


def changed(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [*(partial(changed, place=place) for place in (0, 40, 300)), lambda content: content[:31], lambda _: b""],
)
def test_a_damaged_file_is_noticed_and_refused(tmp_path, damage):
    state = FolderState(tmp_path)
    state.write(kept())
    (path,) = (tmp_path / "tasks").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Refused, match=r"is damaged: its checksum is wrong\. Delete it to continue"):
        state.read("test")
